# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""headrace verify --against: equal means equal bit for bit, and a difference is where it is said to be."""

from __future__ import annotations

from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cli_support import done, flipped, refusal, run, run_json, safetensors_file
from support import random_bytes

FORMS = {
    "torch": ["x.pt"],
    "legacy": ["x.bin", "--format", "torch-legacy"],
    "safetensors": ["x.safetensors"],
    "shards": ["shards", "--shard-size", "3000"],
    "torch shards": ["bins", "--shard-size", "3000", "--format", "torch"],
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    sizes = {"c": 1, "a": 2500, "b": 0, "long.name": 4097, "d": 8}
    tensors = {n: ("U8", [size], random_bytes(size, seed)) for seed, (n, size) in enumerate(sizes.items())}
    return safetensors_file(tmp_path / "source.safetensors", tensors)


def make(source: Path, form: str) -> Path:
    done("convert", source, *FORMS[form], cwd=source.parent)
    return source.parent / FORMS[form][0]


def against(one: Path, other: Path, code: int = 0) -> dict[str, Any]:
    result = run_json("verify", one, "--against", other, code=code)
    assert result["equal"] == (code == 0)
    return result


@pytest.mark.parametrize(("form", "other"), list(combinations_with_replacement(FORMS, 2)))
def test_the_same_tensors_are_equal_in_every_form(source: Path, form: str, other: str) -> None:
    one, two = make(source, form), source if form == other else make(source, other)
    for pair in ((one, two), (two, one)):
        result = against(*pair)
        assert (result["compared_tensors"], result["compared_bytes"]) == (5, 6606)
        assert result["differences"] == []
    assert done("verify", one, "--against", two).startswith("equal: 5 tensors, 6.61 KB, compared with ")


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.iterdir() if not p.name.endswith(".json"))


@pytest.mark.parametrize("at", [0, 1, 2048, 4095, 4096])
@pytest.mark.parametrize("form", FORMS)
def test_one_turned_bit_is_told_with_its_exact_place(source: Path, form: str, at: int) -> None:
    path = make(source, form)
    told = next(t for t in run_json("inspect", path)["tensors"] if t["name"] == "long.name")
    file = files_of(path)[told["file"]]
    place = told["offset_bytes"] + at
    before = file.read_bytes()[place]
    flipped(file, place, file, mask=0x20)
    (difference,) = against(source, path, code=3)["differences"]
    assert (difference["kind"], difference["tensor"]) == ("bytes", "long.name")
    assert (difference["first_bytes"], difference["differing_bytes"]) == (at, 1)
    assert difference["other_file_offset_bytes"] == place
    # What lies at the places told is what differs.
    here = source.read_bytes()[difference["file_offset_bytes"]]
    assert here == before
    assert file.read_bytes()[difference["other_file_offset_bytes"]] == here ^ 0x20
    text = run("verify", source, "--against", path).stdout
    assert f"the first at byte {at} (element {at})" in text
    assert f"at offset {difference['file_offset_bytes']} of its file here and {place} there" in text
    assert "\nDIFFERENT (1 with other bytes, 4 equal): 5 tensors" in text


def test_every_differing_byte_is_counted_across_pieces(tmp_path: Path) -> None:
    length = (9 << 20) + 3  # of several pieces, and no multiple of anything
    data = bytearray(length)
    one = safetensors_file(
        tmp_path / "one.safetensors", {"w": ("U8", [length], bytes(data)), "z": ("U8", [1], b"x")}
    )
    places = [77, (4 << 20) - 1, 4 << 20, (8 << 20) + 5, length - 1]
    for place in places:
        data[place] = 1
    other = safetensors_file(
        tmp_path / "other.safetensors", {"w": ("U8", [length], bytes(data)), "z": ("U8", [1], b"y")}
    )
    first, second = against(one, other, code=3)["differences"]
    assert (first["first_bytes"], first["differing_bytes"]) == (77, len(places))
    assert (second["tensor"], second["first_bytes"], second["differing_bytes"]) == ("z", 0, 1)


def test_elements_are_counted_in_their_own_size(tmp_path: Path) -> None:
    one = safetensors_file(tmp_path / "one.safetensors", {"w": ("F64", [3], bytes(24))})
    other = flipped(one, one.stat().st_size - 1)
    (difference,) = against(one, other, code=3)["differences"]
    assert "byte 23 (element 2)" in difference["text"]


def test_what_is_missing_or_of_another_kind_is_told(tmp_path: Path) -> None:
    one = safetensors_file(
        tmp_path / "one.safetensors",
        {
            "same": ("U8", [2], b"ab"),
            "here": ("U8", [1], b"x"),
            "type": ("I16", [1], b"ab"),
            "shape": ("U8", [4], b"abcd"),
        },
    )
    other = safetensors_file(
        tmp_path / "other.safetensors",
        {
            "shape": ("U8", [2, 2], b"abcd"),
            "type": ("F16", [1], b"ab"),
            "there": ("U8", [1], b"x"),
            "same": ("U8", [2], b"ab"),
        },
    )
    result = against(one, other, code=3)
    assert {d["tensor"]: d["kind"] for d in result["differences"]} == {
        "here": "only-here", "there": "only-there", "type": "dtype", "shape": "shape"}  # fmt: skip
    texts = {d["tensor"]: d["text"] for d in result["differences"]}
    assert texts["type"] == "int16 here, float16 there"
    assert texts["shape"] == "[4] here, [2, 2] there"
    assert result["compared_tensors"] == 1
    assert run("verify", one, "--against", other).stdout.count("\n") == 5


def test_fifty_differences_are_printed_and_all_are_in_the_json(tmp_path: Path) -> None:
    one = safetensors_file(tmp_path / "one.safetensors", {f"w{i:03}": ("U8", [1], b"a") for i in range(123)})
    other = safetensors_file(
        tmp_path / "other.safetensors", {f"w{i:03}": ("U8", [1], b"b") for i in range(123)}
    )
    text = run("verify", one, "--against", other).stdout
    assert text.count("\nbytes: ") + text.startswith("bytes: ") == 50
    assert "\nand 73 more; --json tells all\n" in text
    assert len(against(one, other, code=3)["differences"]) == 123


def test_strided_views_are_compared_by_their_elements(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    values = torch.complex(torch.arange(6.0), torch.arange(6.0) + 1)
    views = {
        "turned": base.t(),
        "column": base[:, 2],
        "repeated": base[:1].expand(3, 6),
        "conjugate": values.conj(),
        "negative": torch._neg_view(torch.arange(5.0)),
        "window": torch.arange(9.0).as_strided((3, 4), (2, 1)),
    }
    torch.save(views, tmp_path / "views.pt")
    plain = {n: t.resolve_conj().resolve_neg().contiguous().clone() for n, t in views.items()}
    torch.save(plain, tmp_path / "plain.pt")
    assert against(tmp_path / "views.pt", tmp_path / "plain.pt")["compared_tensors"] == len(views)
    plain["turned"][5, 3] += 1
    torch.save(plain, tmp_path / "other.pt")
    (difference,) = against(tmp_path / "views.pt", tmp_path / "other.pt", code=3)["differences"]
    assert difference["tensor"] == "turned"
    assert difference["first_bytes"] // 4 == 23
    assert difference["file_offset_bytes"] is None
    assert difference["other_file_offset_bytes"] is not None


def test_bits_count_not_values(tmp_path: Path) -> None:
    zero = safetensors_file(tmp_path / "zero.safetensors", {"w": ("F32", [1], b"\0\0\0\0")})
    minus = safetensors_file(tmp_path / "minus.safetensors", {"w": ("F32", [1], b"\0\0\0\x80")})
    nan = safetensors_file(tmp_path / "nan.safetensors", {"w": ("F32", [1], b"\0\0\xc0\x7f")})
    against(zero, minus, code=3)
    against(nan, nan)


def test_an_empty_name_to_compare_with_is_no_comparison_left_out(source: Path) -> None:
    assert "the path is empty" in refusal("verify", source, "--against", "")
    assert "--against" in refusal("verify", source, "--against=", code=2)


def test_two_tensors_of_one_name_are_no_basis_for_a_verdict(tmp_path: Path, source: Path) -> None:
    torch.save({"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1)}, tmp_path / "twice.pt")
    assert "a.b" in refusal("verify", tmp_path / "twice.pt", "--against", tmp_path / "twice.pt", code=1)
    assert "a.b" in refusal("verify", source, "--against", tmp_path / "twice.pt", code=1)


def test_a_damaged_side_is_told_as_such(source: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(source.read_bytes()[:-1])
    assert str(torn) in refusal("verify", source, "--against", torn, code=3)
    assert str(torn) in refusal("verify", torn, "--against", source, code=3)


def test_tied_names_and_prefixes_are_told_as_such(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight, bias = torch.arange(6.0), torch.ones(2)
    whole, untied, wrapped = (tmp_path / f"{name}.pt" for name in ("whole", "untied", "wrapped"))
    torch.save({"embed": weight, "head": weight, "b": bias}, whole)
    torch.save({"embed": weight, "b": bias}, untied)
    torch.save({"model.embed": weight, "model.b": bias}, wrapped)
    text = run("verify", whole, "--against", untied).stdout
    assert (
        f"only-here: head: {untied} does not have it; its bytes are those of embed, which both have" in text
    )
    assert "DIFFERENT (1 only here, 2 equal): 2 tensors" in text
    for pair in ((untied, wrapped), (wrapped, untied)):
        text = run("verify", pair[0], "--against", pair[1]).stdout
        assert "The names differ by the prefix 'model.'" in text
        assert "DIFFERENT (2 only here, 2 only there): 0 tensors" in text
    assert "names differ" not in run("verify", whole, "--against", untied).stdout


def test_packed_halves_of_an_odd_number_are_of_another_shape(tmp_path: Path) -> None:
    """Both have as many whole bytes in a row when halved with a loss."""
    odd = safetensors_file(tmp_path / "odd.safetensors", {"w": ("F4", [2, 3], bytes(3))})
    even = safetensors_file(tmp_path / "even.safetensors", {"w": ("F4", [2, 2], bytes(2))})
    assert against(odd, odd)["compared_bytes"] == 3
    for one, other in ((odd, even), (even, odd)):
        assert against(one, other, code=3)["differences"][0]["kind"] == "shape"


def test_what_was_not_looked_into_is_not_called_equal(tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("other", 2.0)):
        net = torch.nn.Linear(4, 4)
        torch.nn.init.constant_(net.weight, value)
        torch.save({"w": torch.ones(2), "net": net}, tmp_path / name)
    for other in ("one", "other"):
        said = refusal("verify", tmp_path / "one", "--against", tmp_path / other, code=1)
        assert "80 bytes of it belong to no tensor that is told by name" in said
    torch.save({"w": torch.zeros(2), "net": torch.nn.Linear(4, 4)}, tmp_path / "third")
    assert against(tmp_path / "one", tmp_path / "third", code=3)["differences"][0]["tensor"] == "w"
