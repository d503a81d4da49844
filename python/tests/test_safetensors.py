# SPDX-License-Identifier: Apache-2.0
"""headrace.safetensors beside the package that it stands for: the same files, results and refusals."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import headrace  # noqa: E402
from headrace import safetensors as ours  # noqa: E402
from safetensors_support import CODES, DTYPES, IN_NUMPY, by_hand, entry, same, same_dicts, tensor_of  # noqa: E402


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
        *(
            [({"w": torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, "'w'")]
            if hasattr(torch, "float4_e2m1fn_x2")
            else []
        ),
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
