# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""headrace inspect: what is told of a checkpoint is true, costs next to nothing, and runs nothing."""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from checkpoint_support import BITS, DTYPES, QUANTISED, of_dtype, raw
from cli_support import (
    done,
    measured,
    on_terminal,
    refusal,
    run,
    run_json,
    safetensors_file,
    sparse_safetensors,
    strace,
)
from safetensors_support import CODES

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
LEGACY = {"torch": False, "torch-legacy": True}


def save(obj: Any, path: Path, container: str = "torch") -> Path:
    torch.save(obj, path, _use_new_zipfile_serialization=not LEGACY[container])
    return path


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {tensor["name"]: tensor for tensor in result["tensors"]}


def bytes_at(path: Path, tensor: dict[str, Any]) -> bytes:
    with open(path, "rb") as file:
        file.seek(tensor["offset_bytes"])
        return file.read(tensor["bytes"])


# Of every format and type.


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # torch 2.13
@pytest.mark.parametrize("container", LEGACY)
def test_every_type_of_torch_is_told_with_its_place(tmp_path: Path, container: str) -> None:
    # Of those with several elements to a byte nothing is told but their storage.
    types = [n for n in DTYPES if n not in BITS | {"quint4x2", "quint2x4"}]
    tensors = {name: of_dtype(name) for name in types}
    path = save(tensors, tmp_path / "types.pt", container)
    result = run_json("inspect", path)
    assert [t["name"] for t in result["tensors"]] == list(tensors)
    for name, told in by_name(result).items():
        tensor = tensors[name]
        assert (told["dtype"], told["shape"], told["strides"], told["contiguous"]) == (name, [24], [1], True)
        assert told["elements"] == 24
        if name not in QUANTISED:
            assert told["bytes"] == 24 * tensor.dtype.itemsize
            assert bytes_at(path, told) == raw(tensor)
    assert result["files"][0]["format"] == container
    assert result["files"][0]["storages_with_crc32"] == (0 if LEGACY[container] else len(tensors))


def test_every_type_of_safetensors_is_told_with_its_place(tmp_path: Path) -> None:
    codes = {
        **{code: name for name, code in CODES.items()},
        "F6_E2M3": "float6_e2m3fn",
        "F6_E3M2": "float6_e3m2fn",
    }
    bits = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64, "BOOL": 8, "BF16": 16}
    bits |= {code: int(re.search(r"\d+", code)[0]) for code in codes if code not in bits}  # type: ignore[index]
    tensors = {code: (code, [2, 4], bytes([i]) * bits[code]) for i, code in enumerate(codes)}
    path = safetensors_file(tmp_path / "types.safetensors", tensors)
    for code, told in by_name(run_json("inspect", path)).items():
        assert (told["dtype"], told["shape"], told["elements"]) == (codes[code], [2, 4], 8)
        assert told["bytes"] == bits[code]
        assert bytes_at(path, told) == tensors[code][2]


def test_metadata_is_told(tmp_path: Path) -> None:
    metadata = {"format": "pt", "note": "ünï\ncode \x1b[31m", "": "empty"}
    path = safetensors_file(tmp_path / "x.safetensors", {"w": ("U8", [1], b"x")}, **metadata)
    assert run_json("inspect", path)["files"][0]["metadata"] == metadata
    assert "metadata note = ünï\\x0acode \\x1b[31m" in done("inspect", path)


def test_metadata_is_cut_between_characters(tmp_path: Path) -> None:
    path = safetensors_file(tmp_path / "x.safetensors", {"w": ("U8", [1], b"x")}, note="a" + "é" * 5000)
    told = done("inspect", path)
    assert "\\x" not in told
    assert max(map(len, told.splitlines())) < 300


@pytest.mark.parametrize("container", LEGACY)
def test_what_views_share_is_told(tmp_path: Path, container: str) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    values = torch.view_as_complex(torch.arange(6.0).reshape(3, 2))
    tensors = {
        "base": base,
        "tied": base,
        "view": base[1:3],
        "column": base[:, 2],
        "turned": base.t(),
        "repeated": torch.ones(1).expand(5),
        "conjugate": values.conj(),
        "negative": values.clone().conj().imag,
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 3),
    }
    path = save(tensors, tmp_path / "views.pt", container)
    told = by_name(run_json("inspect", path))
    for name, tensor in tensors.items():
        assert told[name]["shape"] == list(tensor.shape), name
        assert told[name]["strides"] == list(tensor.stride()), name
        assert told[name]["bytes"] == tensor.numel() * tensor.element_size(), name
    assert {n for n, t in told.items() if not t["contiguous"]} == {
        "column", "turned", "repeated", "conjugate", "negative"}  # fmt: skip
    shared = {n: t["shares_with"] for n, t in told.items()}
    assert {n for n, other in shared.items() if other == "base"} == {"tied", "view", "column", "turned"}
    assert all(other is None for n, other in shared.items() if n not in ("tied", "view", "column", "turned"))
    assert bytes_at(path, told["view"]) == raw(base[1:3])
    assert "tied (in the storage of base)" in done("inspect", path)
    assert "turned (in the storage of base) (strided)" in done("inspect", path)


def test_bytes_that_no_tensor_uses_are_noted(tmp_path: Path) -> None:
    path = save({"slice": torch.ones(1000)[:10]}, tmp_path / "slice.pt")
    assert "3960 bytes of its storages belong to no tensor" in done("inspect", path)


def test_the_state_of_an_optimizer_is_told_by_its_keys(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    adam = torch.optim.Adam(layer.parameters())
    layer(torch.ones(3)).sum().backward()
    adam.step()
    state = OrderedDict(
        model=layer.state_dict(), optimizer=adam.state_dict(), step=7, extra=[torch.ones(1), (2,)]
    )
    told = by_name(run_json("inspect", save(state, tmp_path / "train.pt")))
    assert set(told) == {
        "model.weight", "model.bias", "extra.0",
        *(f"optimizer.state.{i}.{n}" for i in (0, 1) for n in ("step", "exp_avg", "exp_avg_sq")),
    }  # fmt: skip
    assert told["optimizer.state.0.exp_avg"]["shape"] == [2, 3]


# Order and choice.


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    tensors = {
        "b.weight": ("F32", [2], bytes(8)),
        "a.bias": ("U8", [3], bytes(3)),
        "b.a.weight": ("U8", [1], bytes(1)),
        "c": ("F64", [2], bytes(16)),
        "a[0].weight": ("U8", [0], b""),
    }
    return safetensors_file(tmp_path / "zoo.safetensors", tensors)


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("name", ["a.bias", "a[0].weight", "b.a.weight", "b.weight", "c"]),
        ("size", ["c", "b.weight", "a.bias", "b.a.weight", "a[0].weight"]),
        ("offset", ["b.weight", "a.bias", "b.a.weight", "c", "a[0].weight"]),
    ],
)
def test_tensors_are_sorted_as_asked(zoo: Path, order: str, names: list[str]) -> None:
    assert [t["name"] for t in run_json("inspect", zoo, "--sort", order)["tensors"]] == names
    text = done("inspect", zoo, f"--sort={order}").partition("\ntensor ")[2].splitlines()[1:6]
    assert [line.split()[0] for line in text] == names


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.weight", {"b.weight", "b.a.weight", "a[0].weight"}),
        ("?", {"c"}),
        ("[ab].*", {"b.weight", "a.bias", "b.a.weight"}),
        ("[!b]*", {"a.bias", "a[0].weight", "c"}),
        (r"a\[0\]*", {"a[0].weight"}),
        ("*", {"b.weight", "a.bias", "b.a.weight", "c", "a[0].weight"}),
        ("C", set()),
        ("", set()),
    ],
)
def test_a_pattern_chooses_tensors_and_the_sums_follow(zoo: Path, pattern: str, names: set[str]) -> None:
    result = run_json("inspect", zoo, "--filter", pattern)
    assert set(by_name(result)) == names
    assert result["totals"] == {
        "tensors": len(names),
        "elements": sum(t["elements"] for t in result["tensors"]),
        "bytes": sum(t["bytes"] for t in result["tensors"]),
    }
    text = done("inspect", zoo, "--filter", pattern)
    assert ("no tensor matches" in text) == (not names)
    assert all((f"\n{name} " in text) == (name in names) for name in ("b.weight", "a.bias", "b.a.weight"))


def test_shares_with_names_no_tensor_that_the_filter_left_out_by_another_name(tmp_path: Path) -> None:
    base = torch.ones(4)
    path = save({"a": base, "b": base}, tmp_path / "x.pt")
    assert run_json("inspect", path, "--filter", "b")["tensors"][0]["shares_with"] == "a"


def test_the_summary_lists_no_tensor(zoo: Path) -> None:
    text = done("inspect", zoo, "--summary")
    assert "a.bias" not in text
    assert re.search(r"^uint8 +3 +4 +4 B$", text, re.M)
    assert re.search(r"^b +2 +3 +9 B$", text, re.M)


def test_what_is_the_same_of_many_tensors_is_one_line(tmp_path: Path) -> None:
    path = save({f"t{i}": torch.ones(3) for i in range(60)}, tmp_path / "a.pt", "torch-legacy")
    problems = run_json("inspect", path)["problems"]
    odd = [p for p in problems if "odd place" in p["text"]]
    assert len(odd) > 50
    lines = [line for line in done("inspect", path, "--summary").splitlines() if "odd place" in line]
    assert lines == [
        f"warning: {path}, {len(odd)} tensors ({odd[0]['tensor']}, {odd[1]['tensor']}, ...): {odd[0]['text']}"
    ]


def test_the_tree_sums_its_branches(zoo: Path) -> None:
    tree = done("inspect", zoo, "--tree").partition("\n\na")[2].splitlines()
    assert tree[:8] == [
        "  1 tensor, 3 B",
        "  bias  uint8 [3] 3 B",
        "a[0]  1 tensor, 0 B",
        "  weight  uint8 [0] 0 B",
        "b  2 tensors, 9 B",
        "  a  1 tensor, 1 B",
        "    weight  uint8 [1] 1 B",
        "  weight  float32 [2] 8 B",
    ]


def test_the_tree_marks_what_shares_a_storage(tmp_path: Path) -> None:
    weight = torch.ones(3)
    path = save({"embed": weight, "head": weight}, tmp_path / "a.pt")
    lines = done("inspect", path, "--tree").splitlines()
    assert lines[-2:] == ["embed  float32 [3] 12 B", "head  float32 [3] 12 B (in the storage of embed)"]


def test_numbers_in_names_count_as_numbers(tmp_path: Path) -> None:
    names = ["h.10.b", "h.2.w", "h.2.b", "h.02.b", "h.100.w", "h.1", "h.10", f"h.{2**70}.w"]
    path = safetensors_file(tmp_path / "m.safetensors", {name: ("U8", [1], b"x") for name in names})
    ordered = ["h.1", "h.2.b", "h.2.w", "h.02.b", "h.10", "h.10.b", "h.100.w", f"h.{2**70}.w"]
    assert [t["name"] for t in run_json("inspect", path, "--sort", "name")["tensors"]] == ordered
    tree = done("inspect", path, "--tree").partition("\n\nh ")[2].splitlines()[1:]
    words = [line.split()[0] for line in tree]
    assert words == ["1", "2", "b", "w", "02", "b", "10", "10", "b", "100", "w", str(2**70), "w"]


def test_the_tree_shows_every_tensor_whatever_its_dots(tmp_path: Path) -> None:
    names = ["", ".", "..", "a", "a.", "a.b", "a..b", ".a", "a.b.", "a.b.c"]
    path = safetensors_file(tmp_path / "x.safetensors", {n: ("U8", [1], b"x") for n in names})
    tree = done("inspect", path, "--tree")
    assert tree.count("uint8 [1] 1 B") == len(names)


def test_a_tree_of_dots_takes_little_memory_and_time(tmp_path: Path) -> None:
    names = ["." * 100_000 + c for c in "abcdefgh"]
    path = safetensors_file(tmp_path / "x.safetensors", {n: ("U8", [1], b"x") for n in names})
    code, resident, seconds = measured("inspect", path, "--tree")
    assert code == 0
    assert resident < 64 << 20
    assert seconds < 1


# Several files.


def shards(folder: Path) -> tuple[Path, dict[str, Any], Path]:
    source = safetensors_file(
        folder / "source.safetensors", {name: ("U8", [4], name.encode() * 4) for name in "abcd"}
    )
    done("convert", source, folder / "shards", "--shard-size", "8")
    index = folder / "shards" / "model.safetensors.index.json"
    return folder / "shards", json.loads(index.read_text()), index


def test_a_folder_of_shards_is_one_checkpoint(tmp_path: Path) -> None:
    folder, index, path = shards(tmp_path)
    result = run_json("inspect", folder)
    assert result["index"] == str(path)
    assert [Path(f["path"]).name for f in result["files"]] == sorted(set(index["weight_map"].values()))
    for name, told in by_name(result).items():
        shard = Path(result["files"][told["file"]]["path"])
        assert shard.name == index["weight_map"][name]
        assert bytes_at(shard, told) == name.encode() * 4
    assert "2 files" in done("inspect", folder)


CHANGES = {
    "in another file": (lambda m: m.update(a=m["d"]), 3, "a", "it is in"),
    "in no file": (lambda m: m.update(ghost=m["a"]), 3, "ghost", "no file does"),
    "not named": (lambda m: m.pop("b"), 3, "b", "the index does not name this tensor"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_index_that_contradicts_its_files_is_told_by_tensor(tmp_path: Path, change: str) -> None:
    folder, index, path = shards(tmp_path)
    make, code, tensor, told = CHANGES[change]
    make(index["weight_map"])
    path.write_text(json.dumps(index))
    for command in ("inspect", "verify"):
        problems = [p for p in run_json(command, folder, code=code)["problems"] if p["severity"] == "error"]
        assert tensor in [p["tensor"] for p in problems]
        assert told in " ".join(p["text"] for p in problems)
        assert f"tensor {tensor}: " in run(command, folder).stdout
    assert tensor in refusal("convert", folder, tmp_path / "out.pt", code=3)


def test_a_wrong_sum_in_the_index_is_a_warning(tmp_path: Path) -> None:
    folder, index, path = shards(tmp_path)
    index["metadata"]["total_size"] = 17
    path.write_text(json.dumps(index))
    (problem,) = run_json("inspect", folder)["problems"]
    assert (problem["severity"], problem["file"]) == ("warning", str(path))
    assert "17" in problem["text"]


def test_one_name_in_two_files_is_told(tmp_path: Path) -> None:
    for i, name in enumerate(["ab", "bc"], 1):
        safetensors_file(tmp_path / f"m-0000{i}-of-00002.safetensors", {n: ("U8", [1], b"x") for n in name})
    (problem,) = run_json("inspect", tmp_path, code=3)["problems"]
    assert problem["tensor"] == "b"


# Strangers' files.


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.path}'",)


@pytest.mark.parametrize("container", LEGACY)
def test_no_command_runs_what_a_pickle_says(tmp_path: Path, container: str) -> None:
    witness = tmp_path / "it ran"
    path = save({"w": torch.ones(3), "evil": Runs(witness)}, tmp_path / "evil.pt", container)
    result = run_json("inspect", path)
    assert result["files"][0]["unknown_globals"] == ["posix.system"]
    assert "posix.system" in done("inspect", path)
    assert run("verify", path, "--stats").returncode == 0
    assert run("verify", path, "--against", path).returncode == 0
    for target in (
        ["out.pt"],
        ["legacy.pt", "--format", "torch-legacy"],
        ["out.safetensors", "--tensors-only"],
    ):
        run("convert", path, *target, cwd=tmp_path)
    assert not witness.exists()
    torch.load(path, weights_only=False)
    assert witness.exists()  # so it was no dud


def test_names_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    nasty = [
        "\x1b[31mred",
        "bell\x07",
        "new\nline",
        "\x9b5m",
        "\u202eleft",
        "nul\0",
        "tab\t",
        "\x7f",
        "back\x08",
        "\r",
    ]
    path = safetensors_file(tmp_path / "x.safetensors", {n: ("U8", [1], b"x") for n in nasty})
    for words in (["inspect", path], ["inspect", path, "--tree"], ["verify", path, "--stats"]):
        text = done(*words)
        assert not CONTROL.search(text)
        assert "\u202e" not in text
        assert "\x9b" not in text
        assert "\\x1b[31mred" in text
    assert set(by_name(run_json("inspect", path))) == set(nasty)
    escapes = re.findall(r"\x1b\[[0-9;]*[A-Za-z]", on_terminal("inspect", path)[1])
    assert set(escapes) <= {"\x1b[1m", "\x1b[0m"}


def test_names_of_5000_letters_are_cut_on_a_terminal_only(tmp_path: Path) -> None:
    long = "layer." * 833 + "xx"
    path = safetensors_file(tmp_path / "x.safetensors", {long: ("U8", [1], b"x")})
    assert long in done("inspect", path)
    code, seen = on_terminal("inspect", path, columns=80)
    assert code == 0
    assert max(len(line) for line in seen.splitlines()[1:] if not line.startswith("\x1b")) <= 80
    assert "…  uint8" in seen
    assert by_name(run_json("inspect", path))[long]["bytes"] == 1


@pytest.mark.parametrize("columns", [1, 20, 79, 65535])
def test_any_width_of_terminal_will_do(zoo: Path, columns: int) -> None:
    code, seen = on_terminal("inspect", zoo, columns=columns)
    assert code == 0
    assert seen.count("float64") >= 1 or columns < 20


def test_dtypes_and_shapes_that_lie_are_refused(tmp_path: Path) -> None:
    for entry in (
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]},
        {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 60]},
    ):
        text = json.dumps({"w": entry}).encode()
        path = tmp_path / "x.safetensors"
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
        refusal("inspect", path, code=3)


# What it costs.


def bytes_read(calls: Path) -> int:
    """Of all calls that read something, whatever they are called."""
    found = re.findall(r"^\d+ +(?:<\.\.\. )?p?read(?:v|64|v2)?\b.*= (\d+)$", calls.read_text(), re.M)
    return sum(map(int, found))


@pytest.mark.parametrize(("mebibytes", "suffix"), [(4096, "safetensors"), (256, "pt"), (256, "bin")])
def test_a_large_file_costs_next_to_nothing(tmp_path: Path, mebibytes: int, suffix: str) -> None:
    path = sparse_safetensors(tmp_path / "big.safetensors", mebibytes)
    if suffix != "safetensors":
        container = "torch" if suffix == "pt" else "torch-legacy"
        path = Path(run_json("convert", path, tmp_path / f"big.{suffix}", "--format", container)["target"])
    code, resident, seconds = measured("inspect", path)
    assert code == 0
    assert seconds < 0.1
    assert resident < 32 << 20
    calls = tmp_path / "calls"
    run(
        "inspect",
        path,
        before=strace("-e", "trace=read,pread64,readv,preadv,preadv2,io_uring_enter", "-o", str(calls)),
    )
    assert "io_uring_enter" not in calls.read_text()  # whose bytes would not be seen
    assert bytes_read(calls) < 1 << 20


def test_metadata_of_many_keys_are_told_in_no_time(tmp_path: Path) -> None:
    keys = {f"key {i}": "" for i in range(200_000)}
    path = safetensors_file(tmp_path / "x.safetensors", {"w": ("U8", [1], b"a")}, **keys)
    code, _, seconds = measured("inspect", path, "--json")
    assert code == 0
    assert seconds < 30  # some 0.5; each key was looked for among all before it
    assert run_json("inspect", path)["files"][0]["metadata"] == keys


PROTO = b"\x80\x02"
TORCH_STORAGE = b"ctorch\nFloatStorage\n"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def storage_id(key: str = "0", kind: bytes = TORCH_STORAGE, elements: int = 1) -> bytes:
    return b"(" + text("storage") + kind + text(key) + text("cpu") + b"K" + bytes([elements]) + b"tQ"


def torch_file(path: Path, pickled: bytes, *storages: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickled)
        archive.writestr("x/version", "3\n")
        for key in storages:
            archive.writestr(f"x/data/{key}", bytes(4))
    return path


REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
HOSTILE = {
    # Some bytes each, of which every one would take as much memory as the longest.
    "nones under a long name": (
        PROTO + b"}" + text("A" * 4090) + b"](" + b"N" * 2_000_000 + b"es.",
        0,
        "",
    ),
    "a long global named often": (
        PROTO + b"cm\n" + b"n" * 1_000_000 + b"\nq\x00](" + b"h\x00" * 100_000 + b"e.",
        0,
        "",
    ),
    "a long module named often": (
        PROTO
        + b"]("
        + text("m" * 1_000_000)
        + b"q\x00"
        + b"".join(b"h\x00" + text(f"n{i}") + b"\x93" for i in range(20_000))
        + b"e.",
        3,
        "many times more than the pickle holds",
    ),
    "a long dict beside each tensor": (
        PROTO
        + b"](}("
        + b"NN" * 300_000
        + b"uq\x00"
        + REBUILD
        + b"q\x01("
        + storage_id()
        + b"K\x00))\x89Nh\x00"
        + b"tq\x02"
        + b"h\x01h\x02R" * 100_000
        + b"e.",
        3,
        "more than 16 things are told of its view",
    ),
    "a long key": (PROTO + storage_id("k" * 70_000) + b".", 3, "longer than 1024 bytes"),
    "a storage of two types": (
        PROTO + b"](" + storage_id() + storage_id(kind=b"ctorch\nIntStorage\n") + b"e.",
        3,
        "another type or number of elements",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_pickle_takes_no_more_than_its_share_of_memory_and_time(tmp_path: Path, what: str) -> None:
    pickled, code, said = HOSTILE[what]
    path = torch_file(tmp_path / "x.pt", pickled, "0")
    ended, resident, seconds = measured("inspect", path)
    assert ended == code
    assert resident < 500 << 20
    assert seconds < 20
    told = run("inspect", path)
    assert said in (told.stdout if code == 0 else told.stderr)
