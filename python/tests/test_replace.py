# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT012
"""Atomic replacement: the old file or the new one, whole, and nothing beside it."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import headrace
import pytest
from support import FrozenFileSystem, loop_ext4, random_bytes


def test_a_write_replaces_the_whole_file(tmp_path: Path, engine_handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1_000_000))
    data = random_bytes(300_001)
    assert engine_handle.write(path, data, mode="replace").result() == len(data)
    assert path.read_bytes() == data
    assert engine_handle.write(path, b"", mode="replace").result() == 0
    assert path.read_bytes() == b""
    assert os.listdir(tmp_path) == ["file"]


def test_many_requests_become_one_file(tmp_path: Path, engine_handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    a, b = random_bytes(100_001), random_bytes(50_003, seed=2)
    with engine_handle.replace(path, size=len(a) + len(b)) as file:
        engine_handle.write(file, a)
        engine_handle.write_many([(file, b, len(a))])
        assert (file.path, file.size) == (path, len(a) + len(b))
        assert os.path.exists(file.temporary_path)
        assert os.path.dirname(file.temporary_path) == str(tmp_path)
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == a + b
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(headrace.ClosedError, match="committed or discarded"):
        engine_handle.write(file, b"more")
    file.discard()


def test_ranges_that_nobody_wrote_are_zeros(tmp_path: Path, handle: headrace.Handle) -> None:
    with handle.replace(tmp_path / "file", size=10_000) as file:
        handle.write(file, b"end", offset=9997)
    assert (tmp_path / "file").read_bytes() == bytes(9997) + b"end"
    with handle.replace(tmp_path / "empty", size=0):
        pass
    assert (tmp_path / "empty").read_bytes() == b""


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), handle.replace(path, size=32 << 20) as file:
        handle.write(file, bytes(32 << 20))
        raise KeyError("mine")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(headrace.ClosedError):
        handle.write(file, b"more")
    handle.close()


def test_a_failed_write_discards_the_file(frozen: FrozenFileSystem) -> None:
    """The reservation succeeded, and one of the writes does not."""
    path = frozen.folder / "file"
    path.write_bytes(b"old")
    before = os.listdir(frozen.folder)
    # One block at a time, and none of them moves: abort() is sure to find some that were not sent.
    with headrace.Handle(engine="posix", workers=1, queue_depth=1, block_bytes=1 << 20) as handle:
        with pytest.raises(headrace.AbortedError) as caught, handle.replace(path, size=16 << 20) as file:
            handle.write(file, bytes(1000)).result()
            frozen.freeze()
            write = handle.write(file, bytes(15 << 20), offset=1000)
            write.abort()
            frozen.thaw()
            assert isinstance(write.exception(), headrace.AbortedError)
        assert caught.value.filename == path
    assert path.read_bytes() == b"old"
    assert os.listdir(frozen.folder) == before


def test_a_dropped_file_is_discarded(tmp_path: Path, handle: headrace.Handle) -> None:
    file = handle.replace(tmp_path / "file", size=1000)
    handle.write(file, bytes(1000)).result()
    assert len(os.listdir(tmp_path)) == 1
    del file
    assert os.listdir(tmp_path) == []


def test_commit_and_discard_can_be_called(tmp_path: Path, handle: headrace.Handle) -> None:
    file = handle.replace(tmp_path / "a", size=3)
    handle.write(file, b"abc")
    file.commit()
    assert (tmp_path / "a").read_bytes() == b"abc"
    with pytest.raises(headrace.ClosedError):
        file.commit()
    other = handle.replace(tmp_path / "b", size=3, durability="none")
    other.discard()
    other.discard()
    assert os.listdir(tmp_path) == ["a"]


def test_writes_outside_of_the_size_are_refused(tmp_path: Path, handle: headrace.Handle) -> None:
    with handle.replace(tmp_path / "file", size=100) as file:
        for offset, length in [(0, 101), (100, 1), (99, 2), (1 << 62, 1)]:
            with pytest.raises(ValueError, match="outside"):
                handle.write(file, bytes(length), offset=offset)
            with pytest.raises(ValueError, match="outside"):
                handle.write_many([(file, bytes(1), 0), (file, bytes(length), offset)])
        handle.write(file, b"", offset=100)
        handle.write(file, bytes(100))
        target = bytearray(100)
        headrace.wait([handle.read(file, target)])
    assert (tmp_path / "file").stat().st_size == 100


def test_the_size_may_change_while_it_is_written(tmp_path: Path, handle: headrace.Handle) -> None:
    data = random_bytes(200_000)
    with handle.replace(tmp_path / "longer", size=0) as file:
        with pytest.raises(ValueError, match="outside"):
            handle.write(file, data)
        file.resize(len(data))
        assert file.size == len(data)
        handle.write(file, data)
    assert (tmp_path / "longer").read_bytes() == data
    with handle.replace(tmp_path / "shorter", size=1 << 20) as file:
        handle.write(file, data).result()
        file.resize(1000)
        with pytest.raises(ValueError, match="outside"):
            handle.write(file, b"x", offset=1000)
        with pytest.raises(ValueError, match="size is -1"):
            file.resize(-1)
    assert (tmp_path / "shorter").read_bytes() == data[:1000]
    with pytest.raises(headrace.ClosedError):
        file.resize(1)


def test_a_size_that_the_disk_does_not_have_leaves_the_old_size(
    tmp_path: Path, handle: headrace.Handle
) -> None:
    with loop_ext4(tmp_path, megabytes=24) as folder:
        file = handle.replace(folder / "file", size=100)
        with pytest.raises(headrace.TransferError, match="ENOSPC") as caught:
            file.resize(1 << 30)
        assert caught.value.errno == errno.ENOSPC
        assert file.size == 100
        handle.write(file, b"a" * 100).result()
        file.commit()
        assert (folder / "file").read_bytes() == b"a" * 100


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    with pytest.raises(ValueError, match="size is -1; allowed: 0 to 2"):
        handle.replace(path, size=-1)
    with pytest.raises(TypeError):
        handle.replace(path)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        handle.replace(3, size=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="offset must be 0"):
        handle.write(path, b"abc", mode="replace", offset=1)
    with pytest.raises(ValueError, match=r"Handle\.replace"):
        handle.write_many([(path, b"abc")], mode="replace")  # type: ignore[arg-type]
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(ValueError, match="for paths"):
        handle.write(descriptor, b"abc", mode="replace")
    os.close(descriptor)
    assert os.listdir(tmp_path) == []


def test_errors_of_replacement_name_the_final_path(tmp_path: Path, handle: headrace.Handle) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for start in (lambda: handle.replace(folder, size=1), lambda: handle.write(folder, b"x", mode="replace")):
        with pytest.raises(IsADirectoryError) as caught:
            start()
        assert (caught.value.errno, caught.value.filename) == (errno.EISDIR, folder)
    with pytest.raises(FileNotFoundError) as missing:
        handle.replace(tmp_path / "none" / "file", size=1)
    assert missing.value.filename == tmp_path / "none" / "file"


def test_links_and_permissions_survive(tmp_path: Path, handle: headrace.Handle) -> None:
    real = tmp_path / "real"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to("real")
    handle.write(link, b"new", mode="replace").result()
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    old_mask = os.umask(0o027)
    try:
        handle.write(tmp_path / "fresh", b"new", mode="replace").result()
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640


def test_readers_see_the_old_or_the_new_file_and_never_a_mix(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    size = 1 << 20
    path.write_bytes(bytes([0]) * size)
    stop = threading.Event()
    seen: list[bool] = []

    def look() -> None:
        while not stop.is_set():
            data = path.read_bytes()
            seen.append(len(data) == size and data == data[:1] * size)

    thread = threading.Thread(target=look)
    thread.start()
    for value in range(1, 40):
        handle.write(path, bytes([value]) * size, mode="replace").result()
    stop.set()
    thread.join()
    assert seen
    assert all(seen)


def test_two_threads_that_replace_one_path_leave_one_whole_file(
    tmp_path: Path, handle: headrace.Handle
) -> None:
    path = tmp_path / "file"

    def work(value: int) -> None:
        for _ in range(25):
            handle.write(path, bytes([value]) * 100_000, mode="replace").result()

    threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in (bytes([1]) * 100_000, bytes([2]) * 100_000)
    assert os.listdir(tmp_path) == ["file"]


def test_nothing_is_visible_before_the_commit(
    frozen: FrozenFileSystem, engine_handle: headrace.Handle
) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"old")
    file = engine_handle.replace(path, size=3)
    frozen.freeze()
    write = engine_handle.write(file, b"new")
    assert path.read_bytes() == b"old"
    frozen.thaw()
    assert write.result() == 3
    assert path.read_bytes() == b"old"
    file.commit()
    assert path.read_bytes() == b"new"
