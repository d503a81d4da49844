# SPDX-License-Identifier: Apache-2.0
"""headrace.safetensors beside the package that it stands for: the same files, results and refusals."""

from __future__ import annotations

import inspect
import json
import os
import struct
import subprocess
import sys
import textwrap
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import headrace  # noqa: E402
from headrace import safetensors as ours  # noqa: E402

# What torch calls the element types, and what the format does.
CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32",
    "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
}  # fmt: skip
DTYPES = [name for name in CODES if hasattr(torch, name)]
IN_NUMPY = [name for name in DTYPES if not name.startswith(("bfloat", "float8", "float4"))]


@pytest.fixture(scope="module")
def package() -> Any:
    return pytest.importorskip("safetensors.torch", reason="the package safetensors is not installed")


@pytest.fixture(scope="module")
def package_or_none() -> Any:
    """For tests that have something to say without it."""
    try:
        import safetensors.torch
    except ImportError:
        return None
    return safetensors.torch


@pytest.fixture
def its_open(package: Any) -> Any:
    import safetensors

    return safetensors.safe_open


def tensor_of(dtype: str, *shape: int) -> Any:
    """Every byte differs from its neighbours; of bool 0 and 1."""
    kind = getattr(torch, dtype)
    nbytes = torch.Size(shape).numel() * kind.itemsize
    values = torch.arange(nbytes, dtype=torch.int64) * 7 + 1
    return (values % (2 if dtype == "bool" else 251)).to(torch.uint8).view(kind).reshape(shape)


def raw(tensor: Any) -> bytes:
    plain = tensor.detach().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy().tobytes()) if plain.numel() else b""


def same(one: Any, other: Any, what: object = "") -> None:
    assert isinstance(one, torch.Tensor), what
    assert (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device), what
    assert one.stride() == other.stride(), what
    assert not one.requires_grad, what
    assert raw(one) == raw(other), what


def same_dicts(one: dict[str, Any], other: dict[str, Any], ordered: bool = True) -> None:
    assert (list(one) == list(other)) if ordered else (one.keys() == other.keys())
    for name in one:
        same(one[name], other[name], name)


def by_hand(path: Path, header: str | bytes | dict[str, Any], data: bytes = b"") -> Path:
    """A file with this header, whatever is in it."""
    text = json.dumps(header) if isinstance(header, dict) else header
    encoded = text.encode() if isinstance(text, str) else text
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    return path


def entry(dtype: str, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_signatures_are_those_of_the_package(package: Any) -> None:
    for name in ("save_file", "load_file", "save", "load", "save_model", "load_model"):
        wanted = inspect.signature(getattr(package, name)).parameters.values()
        have = inspect.signature(getattr(ours, name)).parameters
        for parameter in wanted:
            mine = have[parameter.name]
            assert (mine.kind, mine.default) == (parameter.kind, parameter.default), (name, parameter.name)
        names = [one.name for one in wanted if one.kind is not one.KEYWORD_ONLY]
        assert list(have)[: len(names)] == names, name
        more = have.keys() - {one.name for one in wanted}
        assert all(have[one].kind is inspect.Parameter.KEYWORD_ONLY for one in more), name
    arguments = list(inspect.signature(ours.safe_open).parameters)
    assert arguments == ["filename", "framework", "device", "backend"]


def test_the_names_of_the_package_are_there(its_open: Any) -> None:
    for name in ("keys", "offset_keys", "metadata", "get_tensor", "get_tensors", "get_slice"):
        assert hasattr(its_open, name)
        assert hasattr(ours.safe_open, name)
    assert headrace.safetensors is ours
    assert "safetensors" in dir(headrace)
    assert issubclass(headrace.FormatError, ours.SafetensorError)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_both_ways_bit_for_bit(tmp_path: Path, package: Any, its_open: Any, dtype: str) -> None:
    shapes = [(6, 8), (3, 1), (1,), (0,), (3, 0), (0, 4), (5, 2, 2)] + [()] * (dtype != "float4_e2m1fn_x2")
    obj = {str(i): tensor_of(dtype, *shape) for i, shape in enumerate(shapes)}
    ours.save_file(obj, tmp_path / "ours")
    package.save_file(obj, tmp_path / "theirs")
    written = (tmp_path / "theirs").read_bytes()
    assert (tmp_path / "ours").read_bytes() == written
    assert headrace.save(obj, tmp_path / "saved", format="safetensors") == len(written)
    assert (tmp_path / "saved").read_bytes() == written
    assert ours.save(obj) == written == package.save(obj)
    for loaded in (
        ours.load_file(tmp_path / "theirs"),
        package.load_file(tmp_path / "ours"),
        ours.load(written),
        headrace.load(tmp_path / "theirs"),
    ):
        same_dicts(loaded, obj, ordered=False)
    with ours.safe_open(tmp_path / "theirs", "pt") as mine, its_open(tmp_path / "theirs", "pt") as other:
        for name, tensor in obj.items():
            same(mine.get_tensor(name), tensor, name)
            part = mine.get_slice(name)
            assert part.get_dtype() == other.get_slice(name).get_dtype() == CODES[dtype]
            assert part.get_shape() == other.get_slice(name).get_shape()
            if tensor.dim():
                same(part[:1], tensor[:1], name)


@pytest.mark.parametrize("dtype", IN_NUMPY)
def test_every_type_of_numpy(tmp_path: Path, its_open: Any, dtype: str) -> None:
    obj = {"m": tensor_of(dtype, 4, 6), "none": tensor_of(dtype, 0, 3), "one": tensor_of(dtype)}
    ours.save_file(obj, tmp_path / "a")
    with ours.safe_open(tmp_path / "a", framework="np") as mine, its_open(tmp_path / "a", "np") as other:
        for name in obj:
            one, two = mine.get_tensor(name), other.get_tensor(name)
            assert type(one) is type(two)
            assert (one.dtype, one.shape) == (two.dtype, two.shape)
            assert one.tobytes() == two.tobytes()
            assert one.flags.writeable
        assert mine.get_tensors().keys() == obj.keys()
        for index in ((slice(1, 3), 2), 0, (1, 2), Ellipsis, (slice(None), slice(None, None, 2))):
            one, two = mine.get_slice("m")[index], other.get_slice("m")[index]
            assert type(one) is type(two)
            assert (one.dtype, one.shape) == (two.dtype, two.shape)
            assert one.tobytes() == two.tobytes()


def test_numpy_is_told_of_the_types_that_it_lacks(tmp_path: Path) -> None:
    ours.save_file({"w": torch.ones(2, dtype=torch.float8_e5m2), "x": torch.ones(1)}, tmp_path / "a")
    with ours.safe_open(tmp_path / "a", "numpy") as opened:
        for read in (lambda: opened.get_tensor("w"), opened.get_tensors, lambda: opened.get_slice("w")[:1]):
            with pytest.raises(TypeError, match=r"'w' is float8_e5m2.*numpy"):
                read()
        assert opened.get_tensor("x").tolist() == [1.0]


def test_names_with_odd_characters(tmp_path: Path, package: Any) -> None:
    names = [
        "",
        " ",
        '"',
        "\\",
        "a\nb\t\r\b\f",
        "\x00",
        "\x1f\x7f",
        "é",
        "層.0",
        "😀",
        "\u2028",
        "a/b",
        "'",
        "{}:,[]",
    ]
    obj = {name: torch.tensor([i]) for i, name in enumerate(names)}
    metadata = {'k"\n': "vé\x01"}
    ours.save_file(obj, tmp_path / "a", metadata)
    package.save_file(obj, tmp_path / "b", metadata)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == ours.save(obj, metadata)
    same_dicts(ours.load_file(tmp_path / "b"), package.load_file(tmp_path / "a"))
    with ours.safe_open(tmp_path / "b", "pt") as opened:
        assert opened.keys() == sorted(names)
        assert opened.metadata() == metadata
        for i, name in enumerate(names):
            assert opened.get_tensor(name).tolist() == [i]


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
@pytest.mark.parametrize("place", ["first", "middle", "last", "only", "all"])
def test_tensors_of_no_bytes_and_scalars_in_every_place(
    tmp_path: Path, package: Any, shape: tuple[int, ...], place: str
) -> None:
    names = {"first": "a", "middle": "c", "last": "e", "only": "", "all": "abc"}[place]
    obj = {} if place in ("only", "all") else {"b": torch.ones(5), "d": torch.ones(2, 3)}
    obj |= {name: torch.full(shape, 7.0) for name in names or "x"}
    ours.save_file(obj, tmp_path / "a")
    package.save_file(obj, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == ours.save(obj)
    for loaded in (ours.load_file(tmp_path / "b"), ours.load((tmp_path / "b").read_bytes())):
        same_dicts(loaded, obj, ordered=False)
    for framework in ("pt", "np"):
        with ours.safe_open(tmp_path / "b", framework) as opened:
            for name, tensor in obj.items():
                assert tuple(opened.get_tensor(name).shape) == tuple(tensor.shape)
                assert tuple(opened.get_slice(name)[...].shape) == tuple(tensor.shape)


def test_an_empty_dict_is_a_file(tmp_path: Path, package: Any) -> None:
    ours.save_file({}, tmp_path / "a")
    package.save_file({}, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == ours.save({})
    assert ours.load_file(tmp_path / "b") == ours.load(ours.save({})) == {}
    with ours.safe_open(tmp_path / "a", "np") as opened:
        assert (opened.keys(), opened.get_tensors(), opened.metadata()) == ([], {}, None)


def test_metadata(tmp_path: Path, its_open: Any) -> None:
    obj = {"a": torch.ones(2)}
    for metadata in (None, {}, {"format": "pt"}, OrderedDict(b="2", a="1")):
        ours.save_file(obj, tmp_path / "a", metadata=metadata)
        assert ours.save(obj, metadata=metadata) == (tmp_path / "a").read_bytes()
        with ours.safe_open(tmp_path / "a", "pt") as mine, its_open(tmp_path / "a", "pt") as other:
            assert mine.metadata() == other.metadata() == metadata
    for wrong in ({"a": 1}, {1: "a"}, [("a", "b")], "ab"):
        for save in (lambda m: ours.save_file(obj, tmp_path / "b", m), lambda m: ours.save(obj, m)):
            with pytest.raises(TypeError, match="metadata"):
                save(wrong)
    with pytest.raises(UnicodeEncodeError):
        ours.save_file(obj, tmp_path / "b", {"a": "\ud800"})
    assert not (tmp_path / "b").exists()


def refused() -> dict[str, tuple[Any, type[Exception], str]]:
    base = torch.arange(24.0).reshape(4, 6)
    channels_last = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return {
        "list": ([base], ValueError, "dict of tensors"),
        "number": ({"w": 1}, ValueError, "'w' is a int"),
        "nested": ({"w": {"x": base}}, ValueError, "'w' is a dict"),
        "key": ({1: base}, TypeError, "1 is none"),
        "surrogate": ({"\ud800": base}, UnicodeEncodeError, "surrogates"),
        "transposed": ({"ok": torch.ones(1), "w": base.t()}, ValueError, "'w' is not contiguous"),
        "expanded": ({"w": base[0].expand(3, 6)}, ValueError, "'w' is not contiguous"),
        "strided": ({"w": base[:, ::2]}, ValueError, "'w' is not contiguous"),
        "channels last": ({"w": channels_last}, ValueError, "'w' is not contiguous"),
        "sparse": ({"w": base.to_sparse(), "v": torch.ones(1)}, ValueError, r"sparse.*\['w'\]"),
        "twice": ({"a": base, "b": base, "c": torch.ones(1)}, RuntimeError, r"share memory.*\['a', 'b'\]"),
        "overlap": ({"a": base[:3], "b": base[2:]}, RuntimeError, r"share memory.*\['a', 'b'\]"),
        "other type": ({"a": base, "b": base.view(torch.int32)}, RuntimeError, r"share memory.*\['a', 'b'\]"),
        "transposed too": ({"a": base, "b": base.t()}, RuntimeError, r"\['a', 'b'\]"),
        "meta": ({"w": torch.empty(3, device="meta")}, NotImplementedError, "'w'.*meta"),
    }  # fmt: skip


@pytest.mark.parametrize("case", refused())
def test_what_the_package_refuses(tmp_path: Path, package_or_none: Any, case: str) -> None:
    obj, error, message = refused()[case]
    if package_or_none is not None:
        with pytest.raises(error):
            package_or_none.save_file(obj, tmp_path / "theirs")
    with pytest.raises(error, match=message):
        ours.save_file(obj, tmp_path / "ours")
    with pytest.raises(error, match=message):
        ours.save(obj)
    assert list(tmp_path.iterdir()) == []


def test_what_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    base = torch.ones(2)
    for obj, message in (
        ({"w": base.cdouble()}, "'w'.*complex128"),
        ({"__metadata__": base}, "__metadata__"),
        ({"w": torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, "'w'"),
    ):
        for save in (
            lambda o: ours.save_file(o, tmp_path / "a"),
            ours.save,
            lambda o: headrace.save(o, tmp_path / "a", format="safetensors"),
        ):
            with pytest.raises(ValueError, match=message):
                save(obj)
    for wrong in (3, None):
        with pytest.raises(TypeError):
            ours.save_file({"w": base}, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            ours.load_file(wrong)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_parts_of_one_memory_that_do_not_overlap_are_saved(tmp_path: Path, package: Any) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    obj = {"a": base[:2], "b": base[2:], "p": torch.nn.Parameter(torch.ones(3))}
    ours.save_file(obj, tmp_path / "a")
    package.save_file(obj, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_conjugate_and_negative_views_are_saved_by_their_values(tmp_path: Path) -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    obj = {"conj": values.conj(), "neg": torch._neg_view(torch.arange(3.0))}
    wanted = {"conj": torch.tensor([1 - 2j, 3 + 4j]), "neg": torch.tensor([-0.0, -1.0, -2.0])}
    ours.save_file(obj, tmp_path / "a")
    same_dicts(ours.load_file(tmp_path / "a"), wanted)
    same_dicts(ours.load(ours.save(obj)), wanted)


def test_headrace_save_packs_what_save_file_refuses(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    obj = {
        "base": base, "again": base, "t": base.t(), "step": base[:, ::2], "wide": base[0].expand(3, 6),
        "last": torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "eight": base.to(torch.float8_e5m2).t(), "imag": torch.randn(3, dtype=torch.cfloat).conj().imag,
    }  # fmt: skip
    headrace.save(obj, tmp_path / "a.safetensors", metadata={"format": "pt"})
    loaded = headrace.load(tmp_path / "a.safetensors")
    assert loaded.keys() == obj.keys()
    for name, tensor in obj.items():
        same(loaded[name], tensor.contiguous().resolve_neg(), name)
    for value in (1, {"x": base}, [base], None):
        with pytest.raises(ValueError, match="'w' is a"):
            headrace.save({"w": value}, tmp_path / "b.safetensors")
    assert not (tmp_path / "b.safetensors").exists()


def test_a_save_over_a_longer_file_leaves_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    ours.save_file({"w": torch.ones(100_000)}, path)
    path.chmod(0o640)
    before = ours.load_file(path)
    ours.save_file({"w": torch.zeros(3)}, path, durability="none")
    assert path.read_bytes() == ours.save({"w": torch.zeros(3)})
    assert path.stat().st_mode & 0o777 == 0o640
    assert float(before["w"].sum()) == 100_000
    ours.save_file(before, path)  # and over the file that it came from
    same_dicts(ours.load_file(path), before)
    assert list(tmp_path.iterdir()) == [path]


def test_the_order_is_that_of_the_bytes(tmp_path: Path, package: Any, its_open: Any) -> None:
    header = {"b": entry("U8", [1], 1, 2), "a": entry("U8", [1], 0, 1), "z": entry("U8", [0], 1, 1)}
    path = by_hand(tmp_path / "a", header, b"12")
    assert list(ours.load_file(path)) == list(package.load_file(path)) == ["a", "z", "b"]
    with ours.safe_open(path, "pt") as mine, its_open(path, "pt") as other:
        assert mine.keys() == other.keys() == ["a", "b", "z"]
        assert mine.offset_keys() == other.offset_keys() == ["a", "z", "b"]
        assert list(mine.get_tensors()) == ["a", "z", "b"]
        assert mine.get_tensor("b").tolist() == [ord("2")]


INDICES: list[Any] = [
    0, -1, 3, True, slice(None), slice(1, 3), slice(1, 4, 2), slice(3, 1), slice(2, 100), slice(-2, None),
    slice(-100, 2), slice(4, 9), ..., None, (), (0, 1), (0, -1, 2), (0, ...), (..., 0), (None, 0), (0, None),
    (slice(1, 2), slice(2, 5)), (slice(None), slice(None, None, 2)), (slice(1, 3), ..., slice(0, 2)),
    (0, slice(5, 2)), (1, slice(1, 4, 2), 1), (slice(None), 0), [0, 2], [], (slice(1, 3), [1, 3]),
    (0, [1, 2]), (0, slice(1, 3), [0, 1]), (slice(0, 4, 3), None, 1), [True, False, True, True],
]  # fmt: skip

WRONG_INDICES: list[Any] = [
    4, -5, 1.5, (0, 6), (0, 1, 2, 3), slice(None, None, -1), slice(0, 2, 0), slice(0.5, 2),
]  # fmt: skip


def test_slices_are_what_indexing_gives(tmp_path: Path, its_open: Any) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    full = torch.arange(4 * 6 * 3, dtype=torch.int32).reshape(4, 6, 3)
    ours.save_file(
        {"before": torch.ones(7), "w": full, "z": torch.ones(0, 3), "s": torch.tensor(1.5)}, tmp_path / "a"
    )
    more = [
        torch.tensor([0, 2]),
        torch.tensor(1),
        numpy.int64(2),
        slice(numpy.int64(1), numpy.int64(3)),
        full > 30,
    ]
    with ours.safe_open(tmp_path / "a", "pt") as mine, its_open(tmp_path / "a", "pt") as other:
        part = mine.get_slice("w")
        for index in [*INDICES, *more]:
            assert torch.equal(part[index], full[index]), index
            if part[index].numel() > 1:
                assert part[index].stride() == full[index].stride(), index
            assert torch.equal(other.get_slice("w")[index], full[index]), index
        for name in ("w", "z"):
            for index in WRONG_INDICES:
                with pytest.raises(Exception) as wanted:
                    other.get_slice(name)[index]
                with pytest.raises(wanted.type):
                    mine.get_slice(name)[index]
        for index in (0, slice(None)):
            with pytest.raises(IndexError):
                mine.get_slice("s")[index]
        assert mine.get_slice("s")[()].item() == mine.get_slice("s")[...].item() == 1.5
        assert mine.get_slice("z")[:, 1:2].shape == (0, 1)
    array = full.numpy()
    with ours.safe_open(tmp_path / "a", "np") as mine:
        for index in [*INDICES, numpy.int64(2), numpy.array([0, 2]), array > 30]:
            one = mine.get_slice("w")[index]
            assert isinstance(one, numpy.ndarray)
            assert one.shape == array[index].shape, index
            assert (one == array[index]).all(), index
        with pytest.raises(ValueError, match="step"):
            mine.get_slice("w")[::-1]


def test_slices_read_the_rows_they_need(tmp_path: Path) -> None:
    rows = torch.arange(1000 * 1024, dtype=torch.float32).reshape(1000, 1024)
    ours.save_file({"w": rows}, tmp_path / "a")
    with ours.safe_open(tmp_path / "a", "pt") as opened:
        part = opened.get_slice("w")
        asked: list[int] = []
        file = part._file

        class Watched:
            def read(self, handle: Any, reads: list[Any], verify: str) -> None:
                asked.extend(one[3] for one in reads)
                file.read(handle, reads, verify)

        part._file = Watched()  # type: ignore[assignment]
        for index, read in (
            (5, 1), (slice(10, 20), 10), (slice(0, 1000, 999), 1000), (slice(0, 1000, 500), 501),
            (slice(7, 7), 0), ((slice(998, None), slice(0, 2)), 2),
        ):  # fmt: skip
            asked.clear()
            assert torch.equal(part[index], rows[index])
            assert sum(asked) == read * 4096, index
        asked.clear()
        assert part[3, 100:108].tolist() == rows[3, 100:108].tolist()
        assert asked == [32]


def test_packed_halves_are_sliced_as_torch_counts_them(tmp_path: Path) -> None:
    packed = tensor_of("float4_e2m1fn_x2", 4, 6)
    ours.save_file({"w": packed}, tmp_path / "a")
    with ours.safe_open(tmp_path / "a", "pt") as opened:
        part = opened.get_slice("w")
        assert part.get_shape() == [4, 12]
        for index in (1, slice(1, 3), (2, slice(1, 4))):
            assert raw(part[index]) == raw(packed.view(torch.uint8)[index])
    odd = by_hand(tmp_path / "b", {"w": entry("F4", [2, 1], 0, 1)}, b"1")
    six = by_hand(tmp_path / "c", {"w": entry("F6_E2M3", [4], 0, 3)}, b"123")
    for path in (odd, six):
        for load in (ours.load_file, lambda path: ours.load(path.read_bytes())):
            with pytest.raises(ours.SafetensorError, match="'w'"):
                load(path)
        with ours.safe_open(path, "pt") as opened:
            assert opened.get_slice("w").get_dtype() in ("F4", "F6_E2M3")
            with pytest.raises(ours.SafetensorError, match="'w'"):
                opened.get_tensor("w")


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


def test_default_device_and_type_change_nothing(tmp_path: Path) -> None:
    obj = {
        "w": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "s": torch.tensor(2.5),
        "z": torch.ones(0, 3),
    }
    ours.save_file(obj, tmp_path / "a")
    data = ours.save(obj)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            loaded = [ours.load_file(tmp_path / "a"), ours.load(data), headrace.load(tmp_path / "a")]
            with ours.safe_open(tmp_path / "a", "pt") as opened:
                loaded.append({name: opened.get_tensor(name) for name in obj})
                loaded.append(opened.get_tensors())
                loaded.append({name: opened.get_slice(name)[...] for name in obj})
                row = opened.get_slice("w")[1]
            again = ours.save(obj)
            ours.save_file(obj, tmp_path / "b")
    finally:
        torch.set_default_dtype(torch.float32)
    assert again == data == (tmp_path / "b").read_bytes()
    for one in loaded:
        same_dicts(one, obj, ordered=False)
    same(row, obj["w"][1])


def test_loaded_tensors_have_memory_of_their_own(tmp_path: Path) -> None:
    obj = {name: torch.arange(5.0) for name in "abc"}
    ours.save_file(obj, tmp_path / "a")
    data = ours.save(obj)
    for loaded in (ours.load_file(tmp_path / "a"), ours.load(data)):
        loaded["a"] += 1
        loaded["b"].zero_()
        same(loaded["c"], torch.arange(5.0))
        assert loaded["c"].untyped_storage().nbytes() == 20
        ours.save_file(loaded, tmp_path / "b")
    same_dicts(ours.load(bytearray(data)), obj)
    with pytest.raises(TypeError):
        ours.load("text")  # type: ignore[arg-type]


def test_devices_frameworks_and_backends(tmp_path: Path, its_open: Any) -> None:
    path = tmp_path / "a"
    ours.save_file({"w": torch.ones(2)}, path)
    for device in ("cpu", None, torch.device("cpu"), "cpu:0"):
        assert ours.load_file(path, device)["w"].device == torch.device("cpu")
    for backend in ("mmap", "pread"):
        assert ours.load_file(path, backend=backend).keys() == {"w"}
    for framework in ("pt", "torch", "pytorch"):
        assert type(ours.safe_open(path, framework).get_tensor("w")) is type(
            its_open(path, framework).get_tensor("w")
        )
    for arguments, keywords in (
        (("PT",), {}), (("tf",), {}), (("pt", "meta"), {}), (("pt", "nowhere"), {}), (("np", "cuda"), {}),
        (("pt",), {"backend": "read"}),
    ):  # fmt: skip
        with pytest.raises(ours.SafetensorError):
            ours.safe_open(path, *arguments, **keywords)
    with pytest.raises(TypeError):
        ours.safe_open(path, None)  # type: ignore[arg-type]
    if not torch.accelerator.is_available():
        with pytest.raises(RuntimeError):
            ours.load_file(path, device=0)


def test_a_gpu_gets_its_tensors(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    obj = {"w": torch.arange(12.0).reshape(3, 4), "z": torch.ones(0, 2), "s": torch.tensor(1.5)}
    ours.save_file({name: tensor.cuda() for name, tensor in obj.items()}, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == ours.save(obj)
    for device in ("cuda", "cuda:0", 0):
        for name, tensor in ours.load_file(tmp_path / "a", device=device).items():
            same(tensor, obj[name].cuda(), name)
    with ours.safe_open(tmp_path / "a", "pt", device="cuda") as opened:
        same(opened.get_slice("w")[1:], obj["w"][1:].cuda())


def test_what_is_not_there(tmp_path: Path) -> None:
    for load in (ours.load_file, lambda path: ours.safe_open(path, "np")):
        with pytest.raises(FileNotFoundError):
            load(tmp_path / "missing")
        with pytest.raises(OSError, match="EISDIR"):
            load(tmp_path)
    with pytest.raises(ours.SafetensorError):
        ours.save_file({}, tmp_path / "missing" / "a")
    ours.save_file({"w": torch.ones(2)}, tmp_path / "a")
    with ours.safe_open(os.fsencode(tmp_path / "a"), "pt") as opened:
        for ask in (opened.get_tensor, opened.get_slice):
            with pytest.raises(ours.SafetensorError, match="'v'"):
                ask("v")
            with pytest.raises(TypeError):
                ask(1)  # type: ignore[arg-type]
        part = opened.get_slice("w")
        assert "closed" not in repr(opened)
    assert "closed" in repr(opened)
    for closed in (opened.keys, opened.offset_keys, opened.metadata, opened.get_tensors):
        with pytest.raises(ours.SafetensorError, match="closed"):
            closed()
    with pytest.raises(headrace.ClosedError):
        opened.get_tensor("w")
    assert part[1:].tolist() == [1.0]  # a slice holds the file open, as that of the package does


def test_threads_share_one_opened_file(tmp_path: Path) -> None:
    obj = {str(i): torch.full((1000,), float(i)) for i in range(16)}
    ours.save_file(obj, tmp_path / "a")
    wrong: list[str] = []
    with ours.safe_open(tmp_path / "a", "pt") as opened:

        def read() -> None:
            for name, tensor in obj.items():
                if not torch.equal(opened.get_tensor(name), tensor) or opened.get_slice(name)[7] != float(
                    name
                ):
                    wrong.append(name)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


class Tied(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.b = torch.nn.Linear(3, 3)
        self.a = self.b
        self.c = torch.nn.Linear(3, 2)
        self.whole = torch.nn.Parameter(torch.arange(12.0))
        self.register_buffer("part", self.whole.data[2:5])
        self.register_buffer("flipped", torch.arange(6.0).reshape(2, 3).t())


def test_models_with_shared_tensors_both_ways(tmp_path: Path, package: Any, its_open: Any) -> None:
    model = Tied()
    metadata = {"mine": "1", "b.bias": "kept"}
    ours.save_model(model, tmp_path / "ours", metadata)
    assert metadata == {"mine": "1", "b.bias": "kept"}
    package.save_model(model, tmp_path / "theirs", dict(metadata))
    for path in (tmp_path / "ours", tmp_path / "theirs"):
        with its_open(path, "pt") as opened:
            assert opened.keys() == ["a.bias", "a.weight", "c.bias", "c.weight", "flipped", "whole"]
            assert opened.metadata() == {
                "mine": "1",
                "b.bias": "kept",
                "b.weight": "a.weight",
                "part": "whole",
            }
        for load in (ours.load_model, package.load_model):
            again = Tied()
            again.whole.data.zero_()
            assert load(again, path) == (set(), [])
            for name, tensor in model.state_dict().items():
                assert torch.equal(again.state_dict()[name], tensor), name
            assert again.a.weight is again.b.weight
    other = torch.nn.Linear(3, 4)
    assert ours.load_model(other, tmp_path / "ours", strict=False) == package.load_model(
        other, tmp_path / "ours", strict=False
    )
    with pytest.raises(
        RuntimeError, match=r"Linear(.|\n)*Missing.*\"bias\", \"weight\"(.|\n)*Unexpected.*\"a.bias\""
    ):
        ours.load_model(other, tmp_path / "ours")


def test_which_views_a_model_keeps(tmp_path: Path, package: Any, its_open: Any) -> None:
    class Views(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            base = torch.arange(20.0)
            for name, tensor in {"a": base, "b": base[1:3], "c": base[10:], "d": base[12:14]}.items():
                self.register_buffer(name, tensor)

    for save, path in ((ours.save_model, tmp_path / "ours"), (package.save_model, tmp_path / "theirs")):
        try:
            save(Views(), path)
            with its_open(path, "pt") as opened:
                kept = (opened.keys(), opened.metadata())
        except RuntimeError:
            kept = ("refused",)  # type: ignore[assignment]
        if save is ours.save_model:
            first = kept
    assert first == kept


def test_models_that_cannot_be_saved_whole(tmp_path: Path, package: Any) -> None:
    partial = torch.nn.Linear(3, 3)
    partial.weight = torch.nn.Parameter(torch.zeros(10, 3)[:3])
    partial.bias = torch.nn.Parameter(partial.weight.data[0])
    for save in (ours.save_model, package.save_model):
        with pytest.raises(RuntimeError, match="bias"):
            save(partial, tmp_path / "a")
        with pytest.raises(ValueError, match="flipped"):
            save(Tied(), tmp_path / "a", force_contiguous=False)
    assert list(tmp_path.iterdir()) == []


def test_numpy_files_need_no_torch(tmp_path: Path) -> None:
    ours.save_file({"w": torch.arange(3)}, tmp_path / "a")
    code = """
        import sys
        from headrace.safetensors import safe_open
        with safe_open(sys.argv[1], "np") as f:
            print(f.get_tensor("w").tolist(), f.get_slice("w")[1:].tolist(), "torch" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "a")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(headrace.__file__).parents[1])},
    )
    assert done.stdout.strip() == "[0, 1, 2] [1, 2] False"
