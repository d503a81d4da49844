# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""headrace verify: no damage that a format can show stays unseen, and nothing whole is called damaged."""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from checkpoint_support import BITS, DTYPES, QUANTISED, assert_same, of_dtype
from cli_support import (
    Terminal,
    done,
    flipped,
    measured,
    names,
    refusal,
    run,
    run_json,
    safetensors_file,
    sparse_safetensors,
    strace,
)
from safetensors_support import CODES, tensor_of
from support import random_bytes

LEGACY = {"torch": False, "torch-legacy": True}


def save(obj: Any, path: Path, container: str = "torch") -> Path:
    torch.save(obj, path, _use_new_zipfile_serialization=not LEGACY[container])
    return path


def problems(path: Path, code: int = 3) -> list[dict[str, Any]]:
    result = run_json("verify", path, code=code)
    assert result["good"] == (code == 0)
    return list(result["problems"])


def small() -> dict[str, Any]:
    return {"w": torch.arange(5.0), "n": torch.ones(3, dtype=torch.int16), "step": 3}


# Damage.


@pytest.mark.parametrize("container", LEGACY)
def test_good_files_are_good_and_all_their_records_are_read(tmp_path: Path, container: str) -> None:
    path = save(small(), tmp_path / "good.pt", container)
    result = run_json("verify", path)
    assert result["good"]
    (file,) = result["files"]
    assert file["bytes"] == path.stat().st_size
    if container == "torch":
        with zipfile.ZipFile(path) as archive:
            assert file["summed_bytes"] == sum(record.file_size for record in archive.infolist())
        assert file["read_bytes"] == 0
    else:
        assert file["read_bytes"] >= 26
        assert file["summed_bytes"] == 0


def same_object(one: Path, other: Path) -> bool:
    """As torch reads them; a file that cannot be read is not the same."""
    try:
        assert_same(torch.load(one, weights_only=True), torch.load(other, weights_only=True))
    except Exception:
        return False
    return True


def test_damage_that_verify_does_not_see_changes_nothing_for_torch(tmp_path: Path) -> None:
    good = save(small(), tmp_path / "good.pt")
    data = good.read_bytes()
    # Every seventh byte of the records, every third of the directory and the end, whose fields are short.
    directory = data.index(b"PK\x01\x02")
    offsets = [*range(0, directory, 7), *range(directory, len(data), 3)]
    broken = tmp_path / "broken.pt"
    unseen = []
    for offset in offsets:
        flipped(good, offset, broken, mask=1 << (offset * 5 % 8))
        ended = run("verify", broken)
        if ended.returncode == 0 and "warning" not in ended.stdout:
            unseen.append(offset)
    assert unseen, "padding at least"
    for offset in unseen:
        flipped(good, offset, broken, mask=1 << (offset * 5 % 8))
        assert same_object(good, broken), (offset, data[max(0, offset - 40) : offset + 10])


@pytest.mark.parametrize(
    ("field", "value"), [(8, 0x01), (8, 0x40), (9, 0x20), (10, 0x08), (10, 0x20), (34, 1), (38, 0x10)]
)
def test_a_directory_entry_as_torch_writes_none_is_told(tmp_path: Path, field: int, value: int) -> None:
    path = save(small(), tmp_path / "x.pt")
    data = path.read_bytes()
    for record in (b"data/1", b"version", b".format_version"):
        entry = data.rindex(b"PK\x01\x02", 0, data.index(b"x/" + record, data.index(b"PK\x01\x02")))
        flipped(path, entry + field, tmp_path / "broken.pt", value)
        assert run("verify", tmp_path / "broken.pt").returncode != 0, record


def test_a_record_outside_the_folder_is_a_warning(tmp_path: Path) -> None:
    path = save(small(), tmp_path / "x.pt")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "hello", zipfile.ZIP_DEFLATED)
    assert not same_object(path, path)
    told = problems(path, code=0)
    assert {p["severity"] for p in told} == {"warning"}
    assert all("readme.txt" in p["text"] for p in told)


def records(path: Path) -> dict[str, tuple[int, int]]:
    """Name of each record of a zip → where its data begin, and how long they are."""
    found = {}
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for record in archive.infolist():
            file.seek(record.header_offset + 26)
            name, extra = struct.unpack("<HH", file.read(4))
            found[record.filename.partition("/")[2]] = (
                record.header_offset + 30 + name + extra,
                record.file_size,
            )
    return found


@pytest.mark.parametrize("record", ["data.pkl", "data/0", "data/1", "byteorder", "version"])
def test_damage_to_a_record_is_told_with_its_place_and_tensor(tmp_path: Path, record: str) -> None:
    path = save(small(), tmp_path / "x.pt")
    begin, length = records(path)[record]
    (problem, *_) = problems(flipped(path, begin + length - 1))
    assert "CRC-32" in problem["text"] or record in ("data.pkl", "version", "byteorder")
    assert problem["tensor"] == {"data/0": "w", "data/1": "n"}.get(record)
    if record.startswith("data/"):
        assert problem["offset_bytes"] == begin
        assert str(begin) in problem["text"]


def test_each_damaged_record_is_told(tmp_path: Path) -> None:
    path = save({f"w{i}": torch.full((3,), float(i)) for i in range(60)}, tmp_path / "x.pt")
    places = records(path)
    for i in range(60):
        flipped(path, places[f"data/{i}"][0], path)
    assert {p["tensor"] for p in problems(path)} == {f"w{i}" for i in range(60)}
    text = run("verify", path).stdout
    assert text.count("\nerror: ") == 49
    assert "\nand 10 more; --json tells all\n" in text


@pytest.mark.parametrize("suffix", ["pt", "legacy", "safetensors"])
def test_a_file_cut_at_any_place_is_damaged(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    if suffix == "safetensors":
        safetensors_file(path, {"w": ("U8", [40], random_bytes(40))})
    else:
        save(small(), path, "torch" if suffix == "pt" else "torch-legacy")
    data = path.read_bytes()
    for length in {*range(0, len(data), max(1, len(data) // 40)), len(data) - 1}:
        (tmp_path / "cut").write_bytes(data[:length])
        assert run("verify", tmp_path / "cut").returncode == 3, length


def test_bytes_behind_the_end_are_told_where_the_format_has_an_end(tmp_path: Path) -> None:
    paths = [
        safetensors_file(tmp_path / "x.safetensors", {"w": ("U8", [4], b"abcd")}),
        save(small(), tmp_path / "x.pt"),
        save(small(), tmp_path / "legacy.pt", "torch-legacy"),
    ]
    for path in paths:
        with open(path, "ab") as file:
            file.write(b"tail")
    # torch.load stops at the last storage of a legacy file, which may be one of several in a stream.
    assert [run("verify", path).returncode for path in paths] == [3, 3, 0]


def test_swapped_shards_are_told(tmp_path: Path) -> None:
    source = safetensors_file(tmp_path / "x.safetensors", {n: ("U8", [4], n.encode() * 4) for n in "ab"})
    done("convert", source, tmp_path / "shards", "--shard-size", "4")
    one, two, _ = (tmp_path / "shards" / name for name in names(tmp_path / "shards"))
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)
    assert {p["tensor"] for p in problems(tmp_path / "shards")} == {"a", "b"}


def test_one_damaged_shard_of_several_is_told_and_the_others_are_checked(tmp_path: Path) -> None:
    source = safetensors_file(tmp_path / "x.safetensors", {n: ("U8", [4], n.encode() * 4) for n in "abc"})
    done("convert", source, tmp_path / "shards", "--shard-size", "4", "--format", "torch")
    shards = [tmp_path / "shards" / n for n in names(tmp_path / "shards") if n.endswith(".bin")]
    shards[0].write_bytes(shards[0].read_bytes()[:-30])
    flipped(shards[2], records(shards[2])["data/0"][0], shards[2])
    told = problems(tmp_path / "shards")
    assert [Path(p["file"]).name for p in told] == [shards[0].name, shards[2].name]
    assert len(run_json("verify", tmp_path / "shards", code=3)["files"]) == 2


# What cannot be told is no verdict: exit code 1.


# Without the kernel's rings, whose work cannot be traced, every read is a call that can be made to fail.
NO_RINGS = ["-e", "inject=io_uring_setup:error=ENOSYS", "-e", "inject=io_setup:error=ENOSYS"]


@pytest.mark.parametrize(
    "command", [["inspect"], ["verify"], ["verify", "--stats"], ["verify", "--against", "x"]]
)
def test_a_device_that_does_not_read_is_no_verdict(tmp_path: Path, command: list[str]) -> None:
    path = sparse_safetensors(tmp_path / "x", mebibytes=64)
    calls = "trace=io_uring_setup,io_setup,pread64,preadv,preadv2"
    fail = "inject=pread64,preadv,preadv2:error=EIO"
    if command == ["inspect"]:
        failing = strace("-e", calls, "-e", fail, "-P", str(path), "-o", "/dev/null")
    else:  # not the first ones, by which the program is loaded
        failing = strace("-e", calls, "-e", f"{fail}:when=3+", *NO_RINGS, "-o", "/dev/null")
    ended = run(*command, path, before=failing, cwd=tmp_path)
    assert ended.returncode == 1
    assert "EIO" in ended.stderr
    assert str(path) in ended.stderr


def test_a_file_that_shrinks_while_it_is_read_is_no_verdict(tmp_path: Path) -> None:
    path = sparse_safetensors(tmp_path / "x", mebibytes=20 << 10)
    with Terminal("verify", path, "--stats") as terminal:
        terminal.read_until("% [")
        os.truncate(path, 1 << 20)
        assert terminal.finish() == 1
    assert f"read of '{path}'" in terminal.seen
    assert "end of file" in terminal.seen
    assert run("verify", path).returncode == 3


# Statistics.


def parts(tensor: Any) -> Any:
    """Every number in it, as float64; of complex ones both parts."""
    plain = tensor.resolve_conj().resolve_neg()
    if plain.is_quantized:
        plain = plain.int_repr()
    if plain.dtype.is_complex:
        plain = torch.view_as_real(plain.to(torch.complex128))
    return plain.reshape(-1).to(torch.float64)


def number(value: Any) -> Any:
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(value, value)


def check_stats(told: dict[str, Any], tensor: Any) -> None:
    values = parts(tensor)
    counted = values[~values.isnan()]
    assert told["why_not"] is None, told
    assert told["elements"] == values.numel()
    assert told["nan"] == int(values.isnan().sum())
    assert told["inf"] == int(values.isinf().sum())
    assert told["zero"] == int((values == 0).sum())
    assert number(told["min"]) == (counted.min().item() if counted.numel() else None)
    assert number(told["max"]) == (counted.max().item() if counted.numel() else None)


def stats_of(path: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in run_json("verify", path, "--stats")["stats"]}


SUBBYTE = {"quint4x2", "quint2x4", "float4_e2m1fn_x2"}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # torch 2.13
@pytest.mark.parametrize("container", LEGACY)
def test_statistics_of_every_type_are_those_of_torch(tmp_path: Path, container: str) -> None:
    tensors = {n: of_dtype(n) for n in DTYPES if n not in BITS | SUBBYTE}
    tensors |= {f"{n}.more": random_tensor(n) for n in tensors if n not in QUANTISED}
    told = stats_of(save(tensors, tmp_path / "x.pt", container))
    assert set(told) == set(tensors)
    for name, tensor in tensors.items():
        check_stats(told[name], tensor)


def random_tensor(name: str) -> Any:
    """Every pattern of one byte, and odd counts of the wider ones."""
    dtype = getattr(torch, name)
    if name == "bool":
        return torch.arange(1001) % 7 == 0
    count = 256 if dtype.itemsize == 1 else 4097
    data = bytearray(random_bytes(count * dtype.itemsize) if dtype.itemsize > 1 else bytes(range(256)))
    return torch.frombuffer(data, dtype=dtype)


def test_statistics_of_all_sixteen_bit_patterns_are_those_of_torch(tmp_path: Path) -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    tensors = {n: every.clone().view(getattr(torch, n)) for n in ("float16", "bfloat16", "int16", "uint16")}
    told = stats_of(save(tensors, tmp_path / "x.pt"))
    for name, tensor in tensors.items():
        check_stats(told[name], tensor)


@pytest.mark.parametrize("code", [c for n, c in CODES.items() if hasattr(torch, n) and c != "F4"])
def test_statistics_of_safetensors_are_those_of_torch(tmp_path: Path, code: str) -> None:
    dtype = next(n for n, c in CODES.items() if c == code)
    tensor = tensor_of(dtype, 37, 3)
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    path = safetensors_file(
        tmp_path / "x.safetensors", {"odd": ("U8", [1], b"x"), "w": (code, [37, 3], data)}
    )
    check_stats(stats_of(path)["w"], tensor)


def test_statistics_of_special_values(tmp_path: Path) -> None:
    inf, nan = math.inf, math.nan
    tensors = {
        "all nan": torch.full((5000,), nan),
        "nan and a number": torch.tensor([nan, 3.0, nan]),
        "infinite": torch.tensor([inf, -inf]),
        "zeros": torch.tensor([0.0, -0.0]),
        "tiny": torch.tensor([5e-324, -5e-324], dtype=torch.float64),
        "huge": torch.tensor([2**63 - 1, -(2**63)]),
        "unsigned": torch.tensor([2**64 - 1, 5], dtype=torch.uint64),
        "one": torch.tensor(7),
        "none": torch.empty(0),
        "long": torch.cat([torch.zeros(3_000_000), torch.tensor([nan, inf, -1.0])]),
        "turned": torch.arange(12.0).reshape(3, 4).t(),
        "permuted": torch.arange(24.0).reshape(2, 3, 4).permute(1, 2, 0),
    }
    told = stats_of(save(tensors, tmp_path / "x.pt"))
    for name, tensor in tensors.items():
        check_stats(told[name], tensor)


def test_statistics_of_views_with_another_sign_are_of_what_they_show(tmp_path: Path) -> None:
    values = torch.complex(torch.arange(1.0, 5001.0), torch.arange(-10.0, 4990.0))
    tensors = {
        "conjugate": values.conj(),
        "half": values.to(torch.complex128).conj(),
        "plain": values.clone(),
    }
    told = stats_of(save(tensors, tmp_path / "x.pt"))
    for name, tensor in tensors.items():
        check_stats(told[name], tensor)
    negative = {"negative": torch.complex(torch.ones(1), torch.ones(1)).conj().imag, "all": torch.arange(9.0)}
    negative["all"] = torch._neg_view(negative["all"])
    told = stats_of(save(negative, tmp_path / "y.pt"))
    for name, tensor in negative.items():
        check_stats(told[name], tensor)


def test_views_whose_elements_do_not_lie_side_by_side_are_not_counted(tmp_path: Path) -> None:
    base = torch.arange(36.0)
    tensors = {
        "every second": base[::2],
        "column": base.reshape(6, 6)[:, 1],
        "repeated": base[:1].expand(4),
        # As many elements as their extent holds, and not the same.
        "overlapping": base.as_strided((2, 3), (5, 0)),
        "again": base.as_strided((2, 3), (3, 1)),
        "sliding": base.as_strided((3, 2), (1, 1)),
    }
    told = stats_of(save(tensors, tmp_path / "x.pt"))
    for name, one in told.items():
        if one["why_not"] is None:
            check_stats(one, tensors[name])
        else:
            assert (one["elements"], one["min"]) == (0, None)
    assert {n for n, one in told.items() if one["why_not"]} >= {
        "every second",
        "column",
        "overlapping",
        "sliding",
    }
    assert told["again"]["why_not"] is None


def test_a_tensor_under_many_names_is_counted_once(tmp_path: Path) -> None:
    one = torch.ones(1 << 20)
    one[7] = math.nan
    names_of_it = {f"n{i}": one for i in range(20_000)}
    torch.save(names_of_it | {"part": one[:8]}, tmp_path / "x.pt")
    code, _, seconds = measured("verify", tmp_path / "x.pt", "--stats")
    assert code == 0
    assert seconds < 15  # some 0.3; 80 GB would be counted otherwise
    stats = run_json("verify", tmp_path / "x.pt", "--stats")["stats"]
    assert {(s["elements"], s["nan"]) for s in stats[:-1]} == {(1 << 20, 1)}
    assert [s["name"] for s in stats[:2]] == ["n0", "n1"]
    assert (stats[-1]["name"], stats[-1]["elements"]) == ("part", 8)


def test_statistics_are_printed_as_a_table(tmp_path: Path) -> None:
    path = save({"w": torch.tensor([1.0, math.nan, 0.0]), "v": torch.arange(9.0)[::2]}, tmp_path / "x.pt")
    text = done("verify", path, "--stats")
    assert re.search(r"^w +float32 +3 +1 +0 +1 +0 +1$", text, re.M)
    assert re.search(r"^v \(its elements do not lie side by side\) +float32 +0 +0 +0 +0 +- +-$", text, re.M)


# What it costs.


@pytest.mark.slow
def test_memory_is_bounded_whatever_the_size(tmp_path: Path) -> None:
    path = sparse_safetensors(tmp_path / "big.safetensors", mebibytes=4096, tensors=2)
    for words in (["verify", path], ["verify", path, "--stats"], ["verify", path, "--against", path]):
        code, resident, _ = measured(*words)
        assert code == 0
        assert resident < 350 << 20


def test_memory_stays_far_below_the_size(tmp_path: Path) -> None:
    path = sparse_safetensors(tmp_path / "big.safetensors", mebibytes=1024, tensors=1)
    code, resident, _ = measured("verify", path)
    assert code == 0
    assert resident < 200 << 20


def test_it_names_what_it_could_not_compare(tmp_path: Path) -> None:
    path = safetensors_file(tmp_path / "x.safetensors", {"w": ("U8", [4], b"abcd")})
    text = done("verify", path)
    assert "the format has no checksums, so a changed value would not show" in text
    assert refusal("verify", tmp_path / "no")
