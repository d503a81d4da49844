# SPDX-License-Identifier: Apache-2.0
"""headrace.save, load and open beside unmodified torch and safetensors: each reads what the others write."""

from __future__ import annotations

import json
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace  # noqa: E402
from checkpoint_support import assert_same as same  # noqa: E402
from checkpoint_support import raw  # noqa: E402
from headrace import _core  # noqa: E402

# torch warns of its type complex32 wherever it makes such a tensor.
pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants"),
]


def state() -> dict[str, Any]:
    """A bit of everything that is dense, with storages on both sides of every limit."""
    torch.manual_seed(7)
    base = torch.randn(1000)
    weights = OrderedDict((f"layer.{i}.w", torch.randn(20, 900 + i)) for i in range(6))
    weights["large"] = torch.randn(300_001)
    return {
        "model": weights,
        "linear": torch.nn.Linear(9, 5).state_dict(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "view": base[10:20],
        "overlapping": base[15:30],
        "transposed": torch.randn(10, 20).t(),
        "conjugate": torch.randn(3, dtype=torch.cfloat).conj(),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(4),
        "plain": [1, 2.5, None, True, "é", (1, 2, 3, 4), (), 10**30, -(2**40)],
        "step": {0: {"exp_avg": torch.zeros(7), "step": torch.tensor(3.0)}},
    }


NEW_DTYPES = ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex32"]


def with_new_dtypes() -> dict[str, Any]:
    made = {}
    for name in NEW_DTYPES:
        dtype = getattr(torch, name)
        made[name] = torch.arange(64, dtype=torch.uint8).view(dtype)
    return made


def test_torch_reads_a_zip_container_of_ours_in_every_way(tmp_path: Path) -> None:
    obj = {**state(), **with_new_dtypes()}
    path = tmp_path / "ours.pt"
    assert headrace.save(obj, path) == path.stat().st_size
    same(obj, torch.load(path))
    same(obj, torch.load(path, weights_only=False))
    same(obj, torch.load(path, mmap=True))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for record in archive.infolist():
            assert record.header_offset < path.stat().st_size


@pytest.mark.parametrize("alignment", [64, 4096])
def test_torch_calculates_the_offsets_of_our_records(
    tmp_path: Path, alignment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pytest.importorskip("torch.utils.serialization.config")
    if not hasattr(config.load, "calculate_storage_offsets"):
        pytest.skip("this torch does not calculate offsets")
    monkeypatch.setenv("TORCH_SERIALIZATION_DEBUG", "1")
    obj = state()
    headrace.save(obj, tmp_path / "ours.pt", alignment=alignment)
    before = config.load.calculate_storage_offsets
    config.load.calculate_storage_offsets = True  # monkeypatch would delete it from torch's configuration
    try:
        same(obj, torch.load(tmp_path / "ours.pt", mmap=True))
        same(obj, torch.load(tmp_path / "ours.pt"))
    finally:
        config.load.calculate_storage_offsets = before


@pytest.mark.parametrize("zipped", [True, False])
def test_we_read_what_torch_writes(tmp_path: Path, zipped: bool) -> None:
    obj = {**state(), **(with_new_dtypes() if zipped else {})}
    path = tmp_path / "theirs.pt"
    torch.save(obj, path, _use_new_zipfile_serialization=zipped)
    same(obj, headrace.load(path))
    same(obj, headrace.load(path, mmap=True))
    same(obj, headrace.load(path, weights_only=False))
    same(obj, headrace.load(path, verify="require" if zipped else "off"))


def test_torch_reads_a_legacy_container_of_ours(tmp_path: Path) -> None:
    obj = state()
    headrace.save(obj, tmp_path / "ours.pt", format="torch-legacy")
    same(obj, torch.load(tmp_path / "ours.pt"))
    same(obj, headrace.load(tmp_path / "ours.pt"))


def test_sparse_quantised_and_modules_go_through_pythons_pickler(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    sparse = torch.eye(5).to_sparse()
    assert _core.pickle_state(module) is None
    assert _core.pickle_state({"a": sparse}) is None
    headrace.save({"sparse": sparse, "set": {1, 2}}, tmp_path / "a.pt")
    same({"sparse": sparse, "set": {1, 2}}, headrace.load(tmp_path / "a.pt"))
    headrace.save(module, tmp_path / "m.pt")
    for loaded in (
        headrace.load(tmp_path / "m.pt", weights_only=False),
        torch.load(tmp_path / "m.pt", weights_only=False),
    ):
        same(module.state_dict(), loaded.state_dict())


def test_what_shares_memory_or_identity_still_does(tmp_path: Path) -> None:
    base = torch.randn(100_000)
    weight = torch.nn.Parameter(torch.ones(4))
    obj: dict[str, Any] = {"a": base[:10], "b": base[5:], "t": [base, base], "p": weight, "q": weight}
    obj["itself"] = obj
    size = headrace.save(obj, tmp_path / "a.pt")
    assert size < base.nbytes * 1.2
    for loaded in (headrace.load(tmp_path / "a.pt"), torch.load(tmp_path / "a.pt")):
        assert loaded["itself"] is loaded
        assert loaded["t"][0] is loaded["t"][1]
        assert loaded["p"] is loaded["q"]
        loaded["a"][5] = 77
        assert loaded["b"][0] == 77


def test_a_pickle_that_needs_more_than_weights_is_refused_by_name(tmp_path: Path) -> None:
    headrace.save({"path": tmp_path}, tmp_path / "a.pt")
    with pytest.raises(Exception, match=r"pathlib.*weights_only"):
        headrace.load(tmp_path / "a.pt")
    assert headrace.load(tmp_path / "a.pt", weights_only=False) == {"path": tmp_path}


def test_a_flipped_bit_is_found_and_the_tensor_named(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    headrace.save({"first": torch.zeros(300_000), "second": torch.ones(300_000)}, path)
    with headrace.open(path) as opened:
        assert list(opened) == ["first", "second"]
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    path.write_bytes(data)
    for into in (None, {"first": torch.zeros(300_000), "second": torch.zeros(300_000)}):
        with pytest.raises(headrace.FormatError, match=r"second.*CRC-32") as caught:
            headrace.load(path, into=into)
        assert caught.value.filename == path
        assert caught.value.offset > 0
    assert int((headrace.load(path, verify="off")["second"] != 1).sum()) == 1


def test_into_fills_tensors_in_place(tmp_path: Path) -> None:
    obj = state()
    tensors = {
        name: obj[name] for name in ("model", "linear", "view", "transposed", "empty", "scalar", "step")
    }
    headrace.save(tensors, tmp_path / "a.pt")

    def blank(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: blank(item) for key, item in value.items()}
        return torch.full(value.shape, 9, dtype=value.dtype)

    targets = blank(tensors)
    wide = torch.full((10, 40), 9.0)
    targets["view"] = wide[0, 5:15]  # part of a larger tensor
    before = targets["scalar"]._version
    assert headrace.load(tmp_path / "a.pt", into=targets) is targets
    assert targets["scalar"]._version > before
    for name in ("view", "transposed", "empty", "scalar"):
        assert raw(targets[name]) == raw(tensors[name]), name
    for name, weight in tensors["model"].items():
        assert raw(targets["model"][name]) == raw(weight)
    assert float(wide[0, 4]) == float(wide[0, 15]) == 9.0
    with pytest.raises(KeyError, match=r"lacks 'new'.*also holds"):
        headrace.load(tmp_path / "a.pt", into={"new": torch.ones(1)})
    targets["scalar"] = torch.ones(2)
    with pytest.raises(ValueError, match="'scalar' is int64 of shape"):
        headrace.load(tmp_path / "a.pt", into=targets)


def test_map_location_meta_reads_no_data(tmp_path: Path) -> None:
    headrace.save({"a": torch.ones(5, 6)}, tmp_path / "a.pt")
    loaded = headrace.load(tmp_path / "a.pt", map_location="meta")
    assert loaded["a"].is_meta
    assert loaded["a"].shape == (5, 6)


def test_open_reads_slices(tmp_path: Path) -> None:
    full = torch.randn(100, 50, 8)
    for path in (tmp_path / "a.pt", tmp_path / "a.safetensors"):
        headrace.save({"x": full, "y": torch.arange(3)}, path)
        with headrace.open(path) as opened:
            assert set(opened.keys()) == {"x", "y"}
            stored = opened["x"]
            assert (stored.shape, stored.dtype, stored.nbytes) == (full.shape, full.dtype, full.nbytes)
            every: list[Any] = [
                slice(10, 20), 5, -1, (3, slice(1, 7)), (3, 4, slice(2, 4)), (3, 4, 5),
                (slice(None, None, 3), 1),
                Ellipsis, (Ellipsis, 2), slice(5, 2), slice(-5, None), (None, 3), torch.tensor([3, 1]),
            ]  # fmt: skip
            for index in every:
                assert torch.equal(stored[index], full[index]), index
            with pytest.raises(IndexError, match="out of bounds"):
                stored[100]
            assert torch.equal(opened.read(["y"])["y"], torch.arange(3))
        with pytest.raises(ValueError, match="closed"):
            opened["x"]


def test_shards_load_as_one_dict(tmp_path: Path) -> None:
    parts = {
        "model-00001-of-00002.safetensors": {"a": torch.ones(3)},
        "model-00002-of-00002.safetensors": {"b": torch.zeros(2)},
    }
    for name, part in parts.items():
        headrace.save(part, tmp_path / name)
    expected = {"a": torch.ones(3), "b": torch.zeros(2)}
    same(expected, headrace.load(tmp_path))
    same(expected, headrace.load(tmp_path / "model"))
    first, second = parts
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": first, "b": second}}))
    same(expected, headrace.load(index))
    same(expected, headrace.load(tmp_path))
    filled = {"a": torch.zeros(3), "b": torch.ones(2)}
    same(expected, headrace.load(tmp_path, into=filled))
    # A checkpoint saved over another leaves parts of both.
    headrace.save({"a": torch.full((3,), 5.0)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="left over from another checkpoint"):
        headrace.load(tmp_path)
    (tmp_path / second).unlink()
    with pytest.raises(headrace.FormatError, match="is not there"):
        headrace.load(index)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(headrace.FormatError, match="not a file beside it"):
        headrace.load(index)


def test_safetensors_files_are_those_of_the_package(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.torch", reason="the package safetensors is not installed")
    names = (
        "float32 float16 bfloat16 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool "
        "float8_e4m3fn float8_e5m2 complex64"
    )
    obj = {}
    for i, name in enumerate(names.split()):
        values = torch.arange(48, dtype=torch.uint8) % (2 if name == "bool" else 251)
        obj[f"layer.{i}é\n"] = values.view(getattr(torch, name)).reshape(2, -1)
    obj["empty"], obj["scalar"] = torch.empty(0, 3), torch.tensor(2.5)
    headrace.save(obj, tmp_path / "ours.safetensors", metadata={"format": "pt"})
    package.save_file(obj, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    loaded = headrace.load(tmp_path / "theirs.safetensors")
    for name, tensor in package.load_file(tmp_path / "ours.safetensors").items():
        same(tensor, loaded[name], name)


def test_what_a_format_cannot_hold_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for obj, message in (
        ([torch.ones(1)], "dict of tensors"),
        ({"x": 1}, "'x' is a int"),
        ({1: torch.ones(1)}, "names"),
        ({"x": torch.eye(3).to_sparse()}, "'x'"),
        ({"x": torch.ones(2, dtype=torch.cdouble)}, "complex128"),
        ({"__metadata__": torch.ones(1)}, "__metadata__"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            headrace.save(obj, path)
    one = torch.zeros(8, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="different types"):
        headrace.save([one, one.view(torch.float32)], tmp_path / "a.pt")
    for wrong in (tmp_path / "a.txt", tmp_path / "a"):
        with pytest.raises(ValueError, match="names no format"):
            headrace.save({}, wrong)
    with pytest.raises(ValueError, match="format must be"):
        headrace.save({}, tmp_path / "a.pt", format="zip")  # type: ignore[arg-type]
    with pytest.raises(headrace.InvalidRequestError, match="alignment"):
        headrace.save({}, tmp_path / "a.pt", alignment=100)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["open", "number"])
def test_open_files_are_refused_with_advice(tmp_path: Path, file: str) -> None:
    with open(tmp_path / "a.pt", "wb") as opened:
        target: Any = opened if file == "open" else opened.fileno()
        with pytest.raises(TypeError, match=r"torch\.save"):
            headrace.save({}, target)
        with pytest.raises(TypeError, match=r"torch\.load"):
            headrace.load(target)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_damaged_files_give_an_error_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    good = tmp_path / f"good{suffix}"
    headrace.save({"a": torch.arange(10), "b": torch.ones(2, 3)}, good)
    data = good.read_bytes()
    bad = tmp_path / f"bad{suffix}"
    for cut in [*range(0, len(data), 97), len(data) - 1]:
        bad.write_bytes(data[:cut])
        with pytest.raises((headrace.FormatError, headrace.UnavailableError)):
            headrace.load(bad)
    bad.write_bytes(bytes(1000))
    with pytest.raises(headrace.FormatError, match="zeros"):
        headrace.load(bad)
    with pytest.raises(FileNotFoundError):
        headrace.load(tmp_path / "missing" / f"x{suffix}")


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    headrace.save({"a": torch.ones(10)}, path)

    class Unpicklable:
        def __reduce__(self) -> Any:
            raise RuntimeError("not this one")

    with pytest.raises(RuntimeError, match="not this one"):
        headrace.save({"a": torch.ones(10), "b": Unpicklable()}, path)
    same({"a": torch.ones(10)}, headrace.load(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.pt"]


def test_saving_over_the_file_that_the_tensors_are_mapped_from_is_safe(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    headrace.save({"a": torch.arange(500_000)}, path)
    mapped = headrace.load(path, mmap=True)
    mapped["a"] += 1
    headrace.save(mapped, path)
    same({"a": torch.arange(1, 500_001)}, headrace.load(path))
    same({"a": torch.arange(1, 500_001)}, mapped)


def test_open_tells_what_it_cannot_name(tmp_path: Path) -> None:
    headrace.save({"a.b": torch.ones(2), "a": {"b": torch.zeros(3)}, "c": torch.ones(1)}, tmp_path / "a.pt")
    with headrace.open(tmp_path / "a.pt") as opened:
        assert torch.equal(opened["c"][:], torch.ones(1))
        for read in (lambda: opened["a.b"], lambda: opened.read(["a.b"]), opened.read):
            with pytest.raises(ValueError, match=r"several tensors.*'a\.b'"):
                read()


@pytest.mark.filterwarnings("ignore:.*[Qq]uantiz.*deprecated")
def test_open_refuses_quantised_tensors_by_name(tmp_path: Path) -> None:
    tensor = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 1, torch.qint8)
    headrace.save({"q": tensor, "w": torch.ones(1)}, tmp_path / "a.pt")
    with headrace.open(tmp_path / "a.pt") as opened:
        assert torch.equal(opened["w"].load(), torch.ones(1))
        with pytest.raises(ValueError, match="'q' is quantised"):
            opened["q"]


def test_files_of_big_endian_machines_are_swapped_or_refused(tmp_path: Path) -> None:
    values = torch.arange(5, dtype=torch.int32)
    headrace.save({"a": values}, tmp_path / "little.pt")
    with zipfile.ZipFile(tmp_path / "little.pt") as little, zipfile.ZipFile(tmp_path / "big.pt", "w") as big:
        for record in little.infolist():
            data = little.read(record)
            if record.filename.endswith("/byteorder"):
                data = b"big"
            if record.filename.endswith("/data/0"):
                data = values.numpy().astype(">i4").tobytes()
            if not record.filename.endswith((".format_version", ".storage_alignment")):
                big.writestr(record.filename, data)
    same({"a": values}, headrace.load(tmp_path / "big.pt"))
    same({"a": values}, torch.load(tmp_path / "big.pt"))
    with pytest.raises(ValueError, match="big-endian"):
        headrace.open(tmp_path / "big.pt")
    with pytest.raises(ValueError, match="big-endian"):
        headrace.load(tmp_path / "big.pt", into={"a": torch.zeros(5, dtype=torch.int32)})
    with pytest.raises(ValueError, match="compares nothing"):
        headrace.load(tmp_path / "big.pt", verify="require")
