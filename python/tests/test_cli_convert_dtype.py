# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""headrace convert --dtype: bit for bit what torch's .to() gives. And --select, --exclude, --rename."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from checkpoint_support import BITS, DTYPES, QUANTISED, assert_same, of_dtype
from cli_support import done, names, refusal, run_json, safetensors_file
from support import random_bytes

FLOATS = ["float64", "float32", "float16", "bfloat16"]
INTS = {"float64": torch.int64, "float32": torch.int32, "float16": torch.int16, "bfloat16": torch.int16}


def bits_of(tensor: Any) -> Any:
    return tensor.view(INTS[str(tensor.dtype).removeprefix("torch.")])


def same_bits(found: Any, expected: Any, source: Any) -> None:
    """A NaN stays one, and keeps its sign; torch itself writes different ones from loop to loop."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    nan = expected.isnan()
    assert torch.equal(found.isnan(), nan)
    assert torch.equal(found[nan].signbit(), source[nan].signbit())
    wrong = (bits_of(found) != bits_of(expected)) & ~nan
    assert not wrong.any(), list(zip(source[wrong][:5].tolist(), found[wrong][:5].tolist(), strict=True))


def overflows(source: Any, target: str) -> int:
    turned = source.to(getattr(torch, target))
    return int((turned.isinf() & source.isfinite()).sum())


def every_half(name: str) -> Any:
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(getattr(torch, name))


def edges(name: str) -> Any:
    """Around every place where rounding to a smaller type changes its mind, and a hundred thousand others."""
    dtype = getattr(torch, name)
    values = [
        0.0,
        1.0,
        65504.0,
        65519.99,
        65520.0,
        65536.0,
        2.0**-14,
        2.0**-24,
        2.0**-25,
        2.0**-26,
        6e-8,
        3e38,
    ]
    values += [
        3.3895313892515355e38,
        3.3961775292304958e38,
        3.4028234663852886e38,
        3.4028235677973366e38,
        1e300,
    ]
    values += [2.0**e for e in range(-160, 130)]
    values += [(1 + m / 2048) * 2.0**e for e in range(-30, 18, 3) for m in range(0, 2049, 31)]
    some = torch.tensor(values, dtype=torch.float64).to(dtype)
    bits = bits_of(some)
    near = torch.cat([bits + step for step in range(-2, 3)])
    noise = torch.frombuffer(bytearray(random_bytes(100_000 * dtype.itemsize)), dtype=INTS[name])
    special = bits_of(torch.tensor([math.inf, math.nan, 5e-324, 1e-45], dtype=torch.float64).to(dtype))
    found = torch.cat([near, noise, special]).view(dtype)
    return torch.cat([found, -found])


def turned(tmp_path: Path, tensor: Any, target: str, suffix: str = "pt") -> tuple[Any, dict[str, Any]]:
    source = tmp_path / "source.pt"
    torch.save({"w": tensor}, source)
    result = run_json("convert", source, tmp_path / f"out.{suffix}", "--dtype", target, "--overwrite")
    return torch.load(tmp_path / f"out.{suffix}")["w"], result


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_all_patterns_of_sixteen_bits_become_what_torch_makes_of_them(
    tmp_path: Path, name: str, target: str
) -> None:
    source = every_half(name)
    found, result = turned(tmp_path, source, target)
    same_bits(found, source.to(getattr(torch, target)), source)
    assert result["overflows"] == overflows(source, target)


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_wider_types_are_rounded_as_torch_rounds_them(tmp_path: Path, name: str, target: str) -> None:
    source = edges(name)
    found, result = turned(tmp_path, source, target)
    same_bits(found, source.to(getattr(torch, target)), source)
    assert result["overflows"] == overflows(source, target)


def test_ties_go_to_the_even_neighbour(tmp_path: Path) -> None:
    ties = torch.tensor(
        [1 + 1 / 2048, 1 + 3 / 2048, 2.0**-25, 3 * 2.0**-25, 65520.0, 65519.0], dtype=torch.float32
    )
    found, _ = turned(tmp_path, ties, "float16")
    assert found.tolist() == [1.0, 1 + 2 / 1024, 0.0, 2.0**-23, math.inf, 65504.0]
    found, _ = turned(tmp_path, torch.tensor([1 + 1 / 256, 1 + 3 / 256]), "bfloat16")
    assert found.tolist() == [1.0, 1 + 2 / 128]


def test_the_number_of_values_that_became_infinite_is_told(tmp_path: Path) -> None:
    source = torch.tensor([1.0, 70000.0, -1e30, math.inf, math.nan, 65519.0])
    _, result = turned(tmp_path, source, "float16")
    assert result["overflows"] == 2
    assert result["notes"] == ["2 finite values are too large for float16 and became infinite"]
    torch.save({"a": source, "b": source}, tmp_path / "two.pt")
    torch.save({"a": source.clone(), "b": source.clone()}, tmp_path / "clones.pt")
    # Written once where two tensors are the same bytes, and counted as often as written.
    for words, count in (
        (["two.pt", "x.pt"], 2),
        (["two.pt", "x.safetensors"], 4),
        (["clones.pt", "y.pt"], 4),
    ):
        assert run_json("convert", *words, "--dtype", "float16", cwd=tmp_path)["overflows"] == count
    shards = run_json(
        "convert", "clones.pt", "shards", "--shard-size", "12", "--dtype", "float16", cwd=tmp_path
    )
    assert shards["overflows"] == 4


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_other_types_stay_as_they_are(tmp_path: Path) -> None:
    types = [n for n in DTYPES if n not in BITS | QUANTISED and n not in FLOATS]
    tensors = {n: of_dtype(n) for n in types}
    torch.save(tensors, tmp_path / "source.pt")
    done("convert", tmp_path / "source.pt", tmp_path / "out.pt", "--dtype", "float16")
    assert_same(torch.load(tmp_path / "out.pt"), tensors)


def test_strided_and_signed_views_are_turned_as_they_show(tmp_path: Path) -> None:
    base = torch.randn(60, 70)
    views = {"turned": base.t(), "every other": base[::2, 1::3], "repeated": base[:1].expand(5, 70)}
    views |= {
        "negative": torch._neg_view(torch.randn(1001)),
        "scalar": torch.tensor(0.1),
        "none": torch.empty(3, 0),
    }
    torch.save(views, tmp_path / "source.pt")
    for suffix in ("pt", "safetensors"):
        done("convert", tmp_path / "source.pt", tmp_path / f"half.{suffix}", "--dtype", "float16")
    done("convert", tmp_path / "half.safetensors", tmp_path / "again.pt")
    for path in ("half.pt", "again.pt"):
        found = torch.load(tmp_path / path)
        for name, view in views.items():
            expected = view.resolve_neg().contiguous().to(torch.float16)
            assert torch.equal(found[name], expected), name


@pytest.mark.parametrize("target", ["float16", "float64"])
def test_elements_that_are_cut_between_pieces_stay_whole(tmp_path: Path, target: str) -> None:
    # An odd number of bytes in front puts every boundary of the stream into an element.
    count = (9 << 20) // 4 + 1
    data = torch.randn(count)
    source = safetensors_file(
        tmp_path / "x.safetensors",
        {"odd": ("U8", [3], b"abc"), "w": ("F32", [count], data.numpy().tobytes())},
    )
    header = source.read_bytes()
    length = struct.unpack("<Q", header[:8])[0]
    assert (8 + length + 3) % 4 != 0
    done("convert", source, tmp_path / "x.pt", "--dtype", target)
    assert torch.equal(torch.load(tmp_path / "x.pt")["w"], data.to(getattr(torch, target)))


# Which tensors, and under which names.


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tensors = ["model.a.weight", "model.a.bias", "model.b.weight", "head[0]", "ünï.code"]
    return safetensors_file(tmp_path / "x.safetensors", {n: ("U8", [len(n)], bytes(len(n))) for n in tensors})


def named(source: Path, *words: str) -> list[str]:
    done("convert", source, source.parent / "out.safetensors", "--overwrite", *words)
    return sorted(t["name"] for t in run_json("inspect", source.parent / "out.safetensors")["tensors"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--select", "*.weight"], ["model.a.weight", "model.b.weight"]),
        (["--select", "*.weight", "--select", "head*"], ["head[0]", "model.a.weight", "model.b.weight"]),
        (["--exclude", "model.*"], ["head[0]", "ünï.code"]),
        (["--select", "model.*", "--exclude", "*.bias", "--exclude", "*.b.*"], ["model.a.weight"]),
        (["--select", "[hm]*d[[]0]"], ["head[0]"]),
        (["--select", "[h]*"], ["head[0]"]),
        (["--select", "[hm]*[t]"], ["model.a.weight", "model.b.weight"]),
        (["--select=ünï.code"], ["ünï.code"]),
    ],
)
def test_patterns_choose_tensors(source: Path, words: list[str], expected: list[str]) -> None:
    assert named(source, *words) == expected


def test_patterns_before_the_paths_do_not_swallow_them(source: Path) -> None:
    out = source.parent / "out.safetensors"
    done("convert", "--select", "head*", "--exclude", "x", "--rename", "a=b", source, out)
    assert [t["name"] for t in run_json("inspect", out)["tensors"]] == ["hebd[0]"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([r"^model\.="], ["a.bias", "a.weight", "b.weight", "head[0]", "ünï.code"]),
        (
            [r"^=new."],
            ["new." + n for n in ("head[0]", "model.a.bias", "model.a.weight", "model.b.weight", "ünï.code")],
        ),
        ([r"model\.(.)\.(.*)=\2.\1"], ["bias.a", "head[0]", "weight.a", "weight.b", "ünï.code"]),
        (
            ["a=b", "b=c"],
            ["heca"[:2] + "cd[0]", "model.c.bias", "model.c.weight", "model.c.weight.", "ünï.code"],
        ),
        ([r"\[0\]=\\0"], ["head\\0", "model.a.bias", "model.a.weight", "model.b.weight", "ünï.code"]),
        (["(x)?head=[\\1]"], ["[][0]", "model.a.bias", "model.a.weight", "model.b.weight", "ünï.code"]),
        (["[h]ead=[x]"], ["[x][0]", "model.a.bias", "model.a.weight", "model.b.weight", "ünï.code"]),
        (["d.0=a=b"], ["heaa=b]", "model.a.bias", "model.a.weight", "model.b.weight", "ünï.code"]),
    ],
)
def test_names_are_changed_by_rules_in_order(source: Path, rules: list[str], expected: list[str]) -> None:
    words = [word for rule in rules for word in ("--rename", rule)]
    if rules == ["a=b", "b=c"]:
        # The first rule makes model.b.weight of model.a.weight, which is there: two tensors of one name.
        told = refusal("convert", source, source.parent / "no.safetensors", *words)
        assert "'model.a.weight' and 'model.b.weight' would both be called 'model.c.weight'" in told
        assert names(source.parent) == [source.name]
        return
    assert named(source, *words) == sorted(expected)


def test_two_tensors_of_one_name_are_refused_before_anything_is_written(source: Path) -> None:
    told = refusal("convert", source, source.parent / "out.pt", "--rename", ".*=same")
    assert "would both be called 'same'" in told
    assert names(source.parent) == [source.name]
    # Where one of them is left out there is no clash.
    assert named(source, "--rename", ".*=same", "--select", "head*") == ["same"]


def test_a_rule_that_cuts_a_letter_in_two_is_refused(source: Path) -> None:
    told = refusal("convert", source, source.parent / "out.safetensors", "--rename", "n.=n")
    assert "UTF-8" in told
    assert names(source.parent) == [source.name]


def test_nothing_selected_is_an_error(source: Path) -> None:
    assert "no tensor was selected" in refusal(
        "convert", source, source.parent / "out.pt", "--select", "nothing"
    )
    assert "no tensor was selected" in refusal("convert", source, source.parent / "out.pt", "--exclude", "*")
    assert "no tensor was selected" in refusal("convert", source, source.parent / "out.pt", "--select", "")


def test_names_with_every_character_survive(tmp_path: Path, package: Any) -> None:
    odd = [
        "",
        " ",
        "\0",
        "\n",
        '"',
        "\\",
        "/",
        "'",
        "\u202e",
        "\U0001f600",
        "a" * 5000,
        "__metadata__ ",
        "data/0",
    ]
    path = safetensors_file(tmp_path / "x.safetensors", {n: ("U8", [1], b"x") for n in odd})
    done("convert", path, tmp_path / "x.pt")
    assert set(torch.load(tmp_path / "x.pt")) == set(odd)
    done("convert", tmp_path / "x.pt", tmp_path / "y.safetensors")
    assert set(package.load_file(tmp_path / "y.safetensors")) == set(odd)
