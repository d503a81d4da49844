# SPDX-License-Identifier: Apache-2.0
"""Memory: Buffer and its views, the objects that requests keep, and what is refused."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import weakref
from pathlib import Path

import headrace
import pytest
from support import FrozenFileSystem, is_mapped, random_bytes


def test_a_buffer_is_one_dimension_of_zero_bytes() -> None:
    buffer = headrace.Buffer(5_000_001)
    assert len(buffer) == buffer.nbytes == 5_000_001
    view = memoryview(buffer)
    assert (view.ndim, view.format, view.itemsize, view.readonly) == (1, "B", 1, False)
    assert not any(view[:100_000])
    view[3] = 7
    assert buffer[3] == 7
    buffer[0:2] = b"ab"
    assert bytes(buffer[0:4]) == b"ab\0\7"
    assert buffer[-1] == 0
    with pytest.raises(IndexError):
        buffer[5_000_001]
    assert buffer.pages in ("transparent", "small")
    assert isinstance(buffer.locked, bool)
    assert buffer.address % (2 << 20) == 0
    assert "5000001 bytes" in repr(buffer)


def test_a_touched_buffer_sits_on_huge_pages_where_the_system_has_them() -> None:
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.exists() or "[never]" in enabled.read_text():
        pytest.skip("transparent huge pages are off")
    buffer = headrace.Buffer(64 << 20)
    memoryview(buffer)[::4096] = bytes(len(buffer) // 4096)
    assert buffer.huge_bytes > 32 << 20
    small = headrace.Buffer(8 << 20, pages="small", lock=False)
    memoryview(small)[::4096] = bytes(len(small) // 4096)
    assert small.pages == "small"
    assert small.huge_bytes == 0
    assert not small.locked


def test_a_buffer_that_cannot_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        headrace.Buffer(1 << 60)
    with pytest.raises(ValueError):
        headrace.Buffer(-1)
    with pytest.raises(ValueError, match="pages"):
        headrace.Buffer(1, pages="gigantic")  # type: ignore[arg-type]
    if int(Path("/proc/sys/vm/nr_hugepages").read_text()) == 0:
        with pytest.raises(MemoryError):
            headrace.Buffer(2 << 20, pages="reserved")


def test_an_empty_buffer_works_everywhere(tmp_path: Path, handle: headrace.Handle) -> None:
    buffer = headrace.Buffer(0)
    assert len(buffer) == 0
    assert bytes(buffer) == b""
    assert handle.write(tmp_path / "file", buffer).result() == 0
    assert handle.read(tmp_path / "file", buffer).result() == 0


def test_a_buffer_is_freed_when_the_last_view_dies() -> None:
    size = 128 << 20
    buffer = headrace.Buffer(size)
    address = buffer.address
    view = memoryview(buffer)[100:]
    gone = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert gone() is not None
    assert is_mapped(address, size)
    view[0] = 1
    view.release()
    del view
    gc.collect()
    assert gone() is None
    assert not is_mapped(address, size)


def test_a_buffer_outlives_its_object_while_the_kernel_uses_it(
    frozen: FrozenFileSystem, engine_handle: headrace.Handle
) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"")
    data = random_bytes(4 << 20)
    buffer = headrace.Buffer(len(data))
    buffer[:] = data
    frozen.freeze()
    engine_handle.write(path, buffer)
    del buffer
    gc.collect()
    others = [headrace.Buffer(4 << 20) for _ in range(4)]
    for other in others:
        other[:] = bytes(len(other))
    frozen.thaw()
    engine_handle.close()
    assert path.read_bytes() == data


def test_memory_is_held_until_done_whatever_python_drops(frozen: FrozenFileSystem, engine: str) -> None:
    """The transfer object, the memory and the handle all go away; the bytes still arrive."""
    path = frozen.folder / "file"
    path.write_bytes(b"")
    data = random_bytes(2 << 20)

    class Tracked(bytearray):
        pass

    memory = Tracked(data)
    gone = weakref.ref(memory)
    h = headrace.Handle(engine=engine)
    frozen.freeze()
    h.write(path, memory)
    del memory
    gc.collect()
    assert gone() is not None
    frozen.thaw()
    h.close()
    assert path.read_bytes() == data
    gc.collect()
    assert gone() is None


def test_a_bytearray_cannot_be_resized_while_a_transfer_runs(
    frozen: FrozenFileSystem, handle: headrace.Handle
) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"")
    memory = bytearray(1 << 20)
    frozen.freeze()
    transfer = handle.write(path, memory)
    with pytest.raises(BufferError):
        memory.clear()
    frozen.thaw()
    transfer.result()
    memory.clear()


def test_a_request_that_is_refused_holds_nothing(tmp_path: Path, handle: headrace.Handle) -> None:
    memory = bytearray(100)
    with pytest.raises(FileNotFoundError):
        handle.read(tmp_path / "missing", memory)
    with pytest.raises(ValueError):
        handle.read_many([(tmp_path / "missing", memory), (tmp_path / "missing", bytes(1))])
    memory.append(0)


def test_a_cycle_of_transfer_and_memory_is_collected(tmp_path: Path, handle: headrace.Handle) -> None:
    class Owner(bytearray):
        transfer: headrace.Transfer

    owner = Owner(100)
    owner.transfer = handle.write(tmp_path / "file", owner)
    headrace.wait([owner.transfer])
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def kinds() -> list[object]:
    structure = (ctypes.c_double * 6)()
    mapped = mmap.mmap(-1, 4096)
    return [
        bytearray(48),
        memoryview(bytearray(48)),
        array.array("d", [0] * 6),
        structure,
        mapped,
        headrace.Buffer(48),
    ]


@pytest.mark.parametrize("index", range(6))
def test_any_writable_buffer_can_be_source_and_target(
    tmp_path: Path, handle: headrace.Handle, index: int
) -> None:
    memory = kinds()[index]
    size = memoryview(memory).nbytes  # type: ignore[arg-type]
    data = random_bytes(size)
    (tmp_path / "in").write_bytes(data)
    assert handle.read(tmp_path / "in", memory).result() == size  # type: ignore[arg-type]
    assert handle.write(tmp_path / "out", memory).result() == size  # type: ignore[arg-type]
    assert (tmp_path / "out").read_bytes() == data


@pytest.mark.parametrize("memory", [b"abc", memoryview(b"abc"), memoryview(bytearray(3)).toreadonly()])
def test_read_only_targets_are_refused(tmp_path: Path, handle: headrace.Handle, memory: object) -> None:
    (tmp_path / "file").write_bytes(b"xyz")
    with pytest.raises(ValueError, match="read-only"):
        handle.read(tmp_path / "file", memory)  # type: ignore[arg-type]


def test_strided_sources_are_written_as_their_values(tmp_path: Path, handle: headrace.Handle) -> None:
    data = bytearray(random_bytes(100_000))
    for view in (memoryview(data)[::2], memoryview(data)[::-1], memoryview(data)[1::3]):
        transfer = handle.write(tmp_path / "file", view, mode="truncate")
        transfer.result()
        assert (tmp_path / "file").read_bytes() == view.tobytes()
    with pytest.raises(ValueError, match="contiguous"):
        handle.read(tmp_path / "file", memoryview(data)[::2])


@pytest.mark.parametrize("memory", ["text", 3, None, 1.5, object(), {"a": b"b"}, [b"a", "b"], [[b"a"]]])
def test_what_is_no_memory_is_a_type_error(tmp_path: Path, handle: headrace.Handle, memory: object) -> None:
    with pytest.raises(TypeError, match="cannot be used as a write source"):
        handle.write(tmp_path / "file", memory)  # type: ignore[arg-type]
    assert not (tmp_path / "file").exists()


def test_python_objects_are_no_bytes(tmp_path: Path, handle: headrace.Handle) -> None:
    objects = (ctypes.py_object * 3)()
    for start in (handle.read, handle.write):
        with pytest.raises(ValueError, match="Python objects"):
            start(tmp_path / "file", objects)


def test_overlapping_targets_are_refused(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    view = memoryview(bytearray(100))
    with pytest.raises(ValueError, match="overlap"):
        handle.read_many([(path, view[:50]), (path, view[49:])])
    with pytest.raises(ValueError, match="overlap"):
        handle.read(path, [view[:10], view[5:15]])
    with pytest.raises(ValueError, match="overlap"):
        handle.read_many([(path, view), (path, view[:0]), (path, view[99:])])
    assert [
        t.result() for t in handle.read_many([(path, view[50:]), (path, view[:50]), (path, view[50:50])])
    ] == [50, 50, 0]
    assert [t.result() for t in handle.write_many([(path, view), (path, view, 100)])] == [100, 100]
