# SPDX-License-Identifier: Apache-2.0
"""Safetensors files that are damaged, odd, of another format, or too large."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import headrace  # noqa: E402
from headrace import safetensors as ours  # noqa: E402
from safetensors_support import by_hand, entry, same_dicts  # noqa: E402


def hostile() -> Iterator[tuple[str, bytes, bool]]:
    """What is wrong, the file, and whether the package refuses it too."""

    def made(header: Any, data: bytes = b"") -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    good = made({"w": entry("U8", [4], 0, 4)}, b"1234")
    yield "empty file", b"", True
    yield "half a length", b"1234567", True
    yield "length 2^64-1", b"\xff" * 8 + good[8:], True
    yield "length past the end", struct.pack("<Q", len(good)) + good[8:], True
    yield "length above the limit", struct.pack("<Q", 100_000_001) + good[8:], True
    yield "no header", struct.pack("<Q", 0), True
    yield "zeros", bytes(4096), True
    yield "no object", made(b"[]"), True
    yield "no JSON", made(b"{'w':1}"), True
    yield "cut JSON", made(b'{"w":'), True
    yield "text behind the object", made(b"{} x"), True
    yield "NUL behind the object", made(b"{}\0"), True
    yield "no UTF-8", made(b'{"\xff":1}'), True
    yield "lone surrogate", made(b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), True
    yield "a byte less", good[:-1], True
    yield "a byte more", good + b"x", True
    yield "16 bytes more", good + bytes(16), True
    for what, one in (
        ("end before begin", entry("U8", [4], 4, 0)), ("gap before it", entry("U8", [3], 1, 4)),
        ("end past the file", entry("U8", [5], 0, 5)), ("shape too large", entry("U8", [5], 0, 4)),
        ("shape too small", entry("U8", [3], 0, 4)), ("bits beyond 64", entry("F64", [2**61], 0, 4)),
        ("extents beyond 64 bits", entry("U8", [2**32, 2**33], 0, 4)),
        ("product wraps to 4", entry("U8", [2**62 + 1, 4], 0, 4)),
        ("zero beside an overflow", entry("U8", [2**63, 4, 0], 0, 0)),
        ("extent beyond 64 bits", entry("U8", [2**64], 0, 4)), ("negative extent", entry("U8", [-4], 0, 4)),
        ("fraction", entry("U8", [4.0], 0, 4)), ("extent as text", entry("U8", ["4"], 0, 4)),
        ("offset beyond 64 bits", entry("U8", [4], 0, 2**64)), ("negative offset", entry("U8", [4], -4, 0)),
        ("unknown type", entry("U9", [4], 0, 4)), ("small letters", entry("u8", [4], 0, 4)),
        ("half a byte", entry("F4", [7], 0, 4)), ("no shape", {"dtype": "U8", "data_offsets": [0, 4]}),
        ("no offsets", {"dtype": "U8", "shape": [4]}), ("no type", {"shape": [4], "data_offsets": [0, 4]}),
        ("three offsets", {"dtype": "U8", "shape": [4], "data_offsets": [0, 2, 4]}), ("no tensor", 5),
    ):  # fmt: skip
        yield what, made({"w": one}, b"" if what.startswith("zero") else b"1234"), True
    two = [entry("U8", [2], 0, 2), entry("U8", [2], 2, 4)]
    yield "overlap", made({"v": two[0], "w": entry("U8", [3], 1, 4)}, b"1234"), True
    yield "same range", made({"v": entry("U8", [4], 0, 4), "w": entry("U8", [4], 0, 4)}, b"1234"), True
    yield "gap", made({"v": entry("U8", [1], 0, 1), "w": two[1]}, b"1234"), True
    yield "metadata of numbers", made({"__metadata__": {"a": 1}, "v": two[0], "w": two[1]}, b"1234"), True
    yield "field twice", made(b'{"w":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), True
    one = b'"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    yield "tensor twice", made(b"{" + one + b"," + one + b"}"), False
    yield "blank first", made(b" {}"), False


HOSTILE = {what: (data, theirs) for what, data, theirs in hostile()}


@pytest.mark.parametrize("what", HOSTILE)
def test_damaged_files_are_refused_by_every_way_in(tmp_path: Path, package_or_none: Any, what: str) -> None:
    data, theirs = HOSTILE[what]
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    ways: list[Callable[[], Any]] = [
        lambda: ours.load_file(path),
        lambda: ours.load(data),
        lambda: ours.safe_open(path, "pt"),
        lambda: ours.safe_open(path, "np", backend="pread"),
        lambda: headrace.load(path),
        lambda: headrace.open(path),
    ]
    for way in ways:
        with pytest.raises(headrace.FormatError) as caught:
            way()
        assert isinstance(caught.value, ours.SafetensorError)
        assert "/proc/" not in str(caught.value)
    if theirs and package_or_none is not None:
        with pytest.raises(Exception):  # noqa: B017
            package_or_none.load_file(path)


def test_accepted_oddities(tmp_path: Path, package: Any) -> None:
    for header, data in (
        (b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":{"x":[1]}}}\n\t ', b"1"),
        (b'{"__metadata__":null,"":{"data_offsets":[0,1],"shape":[],"dtype":"U8"}}', b"x"),
    ):
        path = by_hand(tmp_path / "a", header, data)
        same_dicts(ours.load_file(path), package.load_file(path))
        same_dicts(ours.load(path.read_bytes()), package.load_file(path))


@pytest.mark.parametrize("length", [0x0280, 0x010280, 0x4B50, 0x034B50])
def test_a_length_that_looks_like_another_format(tmp_path: Path, length: int) -> None:
    """These lengths begin as a pickle and a zip container do."""
    header = b'{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'.ljust(length)
    path = by_hand(tmp_path / "a", header, b"123")
    assert ours.load_file(path)["w"].tolist() == list(b"123")
    assert ours.load(path.read_bytes())["w"].tolist() == list(b"123")


def test_other_formats_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    torch.save({"a": torch.ones(2)}, tmp_path / "b.pt", _use_new_zipfile_serialization=False)
    for path in (tmp_path / "a.pt", tmp_path / "b.pt"):
        with pytest.raises(headrace.FormatError, match="no safetensors file"):
            ours.load_file(path)
        with pytest.raises(headrace.FormatError):
            ours.load(path.read_bytes())


def test_a_header_above_the_limit_is_refused_and_nothing_left(tmp_path: Path) -> None:
    obj = {f"{i}" + "x" * 10_000_000: torch.ones(1) for i in range(10)}
    for save in (
        lambda: ours.save_file(obj, tmp_path / "a"),
        lambda: ours.save(obj),
        lambda: headrace.save(obj, tmp_path / "a.safetensors"),
    ):
        with pytest.raises(ValueError, match="header"):
            save()
    assert list(tmp_path.iterdir()) == []
