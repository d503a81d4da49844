# SPDX-License-Identifier: Apache-2.0
"""numpy arrays and DLPack tensors of any library."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import headrace
import pytest
from support import random_bytes

numpy = pytest.importorskip("numpy")


@pytest.mark.parametrize(
    "dtype",
    ["u1", "i8", "f2", "f8", "c16", "?", "S5", "U3", "M8[ns]", "m8[s]", "V7", [("a", "f4"), ("O", "i2")]],
)
def test_every_dtype_makes_the_round_trip(tmp_path: Path, handle: headrace.Handle, dtype: Any) -> None:
    """The buffer protocol has no word for datetime64; field names may look like the format of an object."""
    kind = numpy.dtype(dtype)
    array = numpy.frombuffer(bytes(n % 2 for n in range(6 * kind.itemsize)), dtype=kind).reshape(2, 3).copy()
    assert handle.write(tmp_path / "file", array).result() == array.nbytes
    target = numpy.zeros((2, 3), dtype=kind)
    assert handle.read(tmp_path / "file", target).result() == array.nbytes
    assert target.tobytes() == array.tobytes() == (tmp_path / "file").read_bytes()


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_empty_and_scalar_arrays_work(
    tmp_path: Path, handle: headrace.Handle, shape: tuple[int, ...]
) -> None:
    array = numpy.ones(shape)
    assert handle.write(tmp_path / "file", array).result() == array.nbytes
    target = numpy.zeros(shape)
    assert handle.read(tmp_path / "file", target).result() == array.nbytes
    assert target.shape == shape
    assert (target == array).all()


def test_strided_arrays_are_written_as_their_values_and_refused_as_targets(
    tmp_path: Path, handle: headrace.Handle
) -> None:
    x = numpy.arange(120, dtype="i4").reshape(4, 5, 6)
    for array in (x.T, x[:, 1:3], x[::-1], numpy.asfortranarray(x), numpy.broadcast_to(x[0], (3, 5, 6))):
        handle.write(tmp_path / "file", array, mode="truncate").result()
        assert (tmp_path / "file").read_bytes() == array.tobytes()
        with pytest.raises(ValueError, match=r"contiguous|read-only"):
            handle.read(tmp_path / "file", array)


def test_arrays_without_plain_bytes_are_refused_by_name(tmp_path: Path, handle: headrace.Handle) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))
    masked = numpy.ma.masked_array([1, 2, 3], mask=[0, 1, 0])
    cases = [
        (numpy.array([object(), None]), "object"),
        (numpy.zeros(2, dtype=[("a", "O"), ("b", "i4")]), "object"),
        (masked, "masked"),
    ]
    if hasattr(numpy.dtypes, "StringDType"):
        cases.append((numpy.array(["a", "b"], dtype=numpy.dtypes.StringDType()), "object"))
    for array, word in cases:
        for start in (handle.read, handle.write):
            with pytest.raises(ValueError, match=word):
                start(tmp_path / "file", array)
    assert (tmp_path / "file").read_bytes() == bytes(1000)


def test_read_only_arrays_are_refused_as_targets(tmp_path: Path, handle: headrace.Handle) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    frozen = numpy.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        handle.read(tmp_path / "file", frozen)
    mapped = numpy.memmap(tmp_path / "file", mode="r")
    with pytest.raises(ValueError, match="read-only"):
        handle.read(tmp_path / "file", mapped)
    assert handle.write(tmp_path / "copy", mapped).result() == 100


def test_an_array_is_held_until_done_and_no_longer(tmp_path: Path, handle: headrace.Handle) -> None:
    array = numpy.frombuffer(random_bytes(1 << 20), dtype="u1").copy()
    expected = array.tobytes()
    transfer = handle.write(tmp_path / "file", array[100:])
    del array
    gc.collect()
    transfer.result()
    assert (tmp_path / "file").read_bytes() == expected[100:]


def test_empty_makes_arrays_over_headrace_memory(tmp_path: Path, handle: headrace.Handle) -> None:
    array = headrace.numpy.empty((3, 1 << 20), dtype="f4")
    assert (array.shape, array.dtype, array.flags.c_contiguous, array.flags.writeable) == (
        (3, 1 << 20),
        "f4",
        True,
        True,
    )
    assert not array.any()
    array[:] = 7
    transfer = handle.write(tmp_path / "file", array)
    transfer.result()
    assert transfer.route is not None
    assert transfer.route.staged_bytes == 0
    assert headrace.numpy.empty(5).dtype == numpy.float64
    assert headrace.numpy.empty(numpy.int64(5), "i1").shape == (5,)
    assert headrace.numpy.empty((2, 0)).shape == (2, 0)
    assert headrace.numpy.empty(()).shape == ()
    with pytest.raises(ValueError, match="object"):
        headrace.numpy.empty(3, dtype=object)
    with pytest.raises(ValueError, match="negative"):
        headrace.numpy.empty((2, -1))
    with pytest.raises(TypeError):
        headrace.numpy.empty("a")
    with pytest.raises(MemoryError):
        headrace.numpy.empty(1 << 60)


def test_numpy_sees_a_buffer_without_a_copy() -> None:
    buffer = headrace.Buffer(1000)
    for array in (numpy.from_dlpack(buffer), numpy.frombuffer(buffer, dtype="u1"), numpy.asarray(buffer)):
        assert array.ctypes.data == buffer.address
        assert array.shape == (1000,)
    view = numpy.from_dlpack(buffer)
    del buffer
    gc.collect()
    assert not view.any()


class Foreign:
    """A tensor of some other library: it has DLPack and nothing else."""

    def __init__(self, array: Any, version: tuple[int, int] | None, device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.version = version
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        if self.version is None and "max_version" in options:
            raise TypeError("an exporter from before DLPack 1.0")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_dlpack_tensors_are_source_and_target(
    tmp_path: Path, handle: headrace.Handle, version: tuple[int, int] | None
) -> None:
    array = numpy.arange(24, dtype="f4").reshape(2, 3, 4)
    assert handle.write(tmp_path / "file", Foreign(array, version)).result() == 96
    target = numpy.zeros((2, 3, 4), dtype="f4")
    transfer = handle.read(tmp_path / "file", Foreign(target, version))
    gc.collect()
    assert transfer.result() == 96
    assert (target == array).all()
    assert handle.write(tmp_path / "none", Foreign(numpy.zeros((0, 3)), version)).result() == 0


def test_dlpack_tensors_are_refused_by_name(tmp_path: Path, handle: headrace.Handle) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))
    array = numpy.arange(24, dtype="f4").reshape(2, 3, 4)
    with pytest.raises(ValueError, match="GPU memory is not supported"):
        handle.read(tmp_path / "file", Foreign(array, (1, 0), device=(2, 0)))
    with pytest.raises(ValueError, match="row-major"):
        handle.read(tmp_path / "file", Foreign(array.T, (1, 0)))
    fixed = array.copy()
    fixed.flags.writeable = False
    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0":
        with pytest.raises(ValueError, match="read-only"):
            handle.read(tmp_path / "file", Foreign(fixed, (1, 0)))

    class NoCapsule(Foreign):
        def __dlpack__(self, **options: Any) -> Any:
            return object()

    with pytest.raises(TypeError, match="no DLPack"):
        handle.read(tmp_path / "file", NoCapsule(array, None))


def test_a_buffer_exports_only_what_it_can(tmp_path: Path) -> None:
    buffer = headrace.Buffer(10)
    assert buffer.__dlpack_device__() == (1, 0)
    buffer.__dlpack__()  # dropped unconsumed
    buffer.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=False)
    for options in ({"stream": 1}, {"copy": True}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            buffer.__dlpack__(**options)  # type: ignore[arg-type]
