# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT017
"""The file of a request: its forms, its modes, and names that break other libraries."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import headrace
import pytest
from support import open_descriptors, random_bytes


@pytest.mark.parametrize("form", [str, os.fsencode, Path])
def test_a_path_may_be_str_bytes_or_pathlike(tmp_path: Path, handle: headrace.Handle, form: type) -> None:
    path = form(str(tmp_path / "file"))
    handle.write(path, b"abc").result()
    target = bytearray(3)
    transfer = handle.read(path, target)
    assert transfer.result() == 3
    assert target == b"abc"
    assert transfer.filename is path
    assert headrace.File(path).name is path


def test_a_descriptor_is_used_and_left_as_it_is(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    data = random_bytes(1 << 20)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.lseek(descriptor, 77, os.SEEK_SET)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        handle.write(descriptor, data, offset=3).result()
        target = bytearray(len(data))
        handle.read(descriptor, target, offset=3).result()
        assert target == data
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) == flags
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 77
    finally:
        os.close(descriptor)


def test_a_descriptor_may_be_closed_once_the_request_was_made(
    tmp_path: Path, handle: headrace.Handle
) -> None:
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    data = random_bytes(8 << 20)
    transfer = handle.write(descriptor, data)
    os.close(descriptor)
    assert transfer.result() == len(data)
    assert path.read_bytes() == data


def test_an_append_descriptor_is_refused(tmp_path: Path, handle: headrace.Handle) -> None:
    """Linux ignores the offset of a write to it."""
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        with pytest.raises(OSError, match="O_APPEND") as caught:
            handle.write(descriptor, b"abc")
        assert caught.value.errno == errno.EINVAL
        assert caught.value.filename == descriptor
    finally:
        os.close(descriptor)


def test_a_file_object_is_shared_by_many_requests(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    with headrace.File(path, "update") as file:
        writes = [handle.write(file, bytes([i]) * 1000, offset=i * 1000) for i in range(20)]
        assert [w.result() for w in writes] == [1000] * 20
        assert file.size == 20_000
        assert file.mode == "update"
        memory, offset = file.direct_alignment
        assert offset in (0, 512, 1024, 2048, 4096)
        assert memory <= 4096
        target = bytearray(20_000)
        pending = handle.read(file, target)
    assert pending.result() == 20_000
    assert file.closed
    with pytest.raises(headrace.ClosedError, match="closed"):
        handle.read(file, target)
    with pytest.raises(ValueError, match="closed"):
        _ = file.size
    file.close()


@pytest.mark.parametrize("file", [None, 1.5, True, object(), ["a"], b"a\0b", "a\0b", 10**20, -1])
def test_what_is_no_file_is_refused(handle: headrace.Handle, file: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        handle.read(file, bytearray(1))  # type: ignore[arg-type]


def test_a_closed_descriptor_is_an_error_with_its_number(tmp_path: Path, handle: headrace.Handle) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.close(descriptor)
    with pytest.raises(headrace.TransferError) as caught:
        handle.read(descriptor, bytearray(1))
    assert caught.value.errno == errno.EBADF
    assert caught.value.filename == descriptor


def test_update_creates_and_never_cuts(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    handle.write(path, b"0123456789").result()
    handle.write(path, b"ab", mode="update").result()
    assert path.read_bytes() == b"ab23456789"


def test_create_is_exclusive(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    handle.write(path, b"first", mode="create").result()
    with pytest.raises(FileExistsError) as caught:
        handle.write(path, b"second", mode="create")
    assert isinstance(caught.value, headrace.TransferError)
    assert caught.value.errno == errno.EEXIST
    assert path.read_bytes() == b"first"


def test_truncate_cuts_the_old_contents(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    handle.write(path, b"new", mode="truncate").result()
    assert path.read_bytes() == b"new"


def test_nothing_is_cut_when_the_arguments_are_wrong(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"precious")
    with pytest.raises(TypeError):
        handle.write(path, object(), mode="truncate")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="priority"):
        handle.write(path, b"new", mode="truncate", priority=1000)
    with pytest.raises(ValueError, match="offset"):
        handle.write(path, b"new", mode="truncate", offset=-1)
    with pytest.raises(ValueError, match="durability"):
        handle.write(path, b"new", mode="truncate", durability="fsync")  # type: ignore[arg-type]
    handle.close()
    with pytest.raises(headrace.ClosedError):
        handle.write(path, b"new", mode="truncate")
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("mode", ["create", "truncate"])
def test_an_open_file_takes_no_mode(tmp_path: Path, handle: headrace.Handle, mode: str) -> None:
    with (
        headrace.File(tmp_path / "file", "update") as file,
        pytest.raises(ValueError, match="already open"),
    ):
        handle.write(file, b"abc", mode=mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("durability", ["none", "data"])
def test_durable_writes_are_done_when_they_are_synced(
    tmp_path: Path, handle: headrace.Handle, durability: str
) -> None:
    path = tmp_path / "file"
    writes = handle.write_many([(path, bytes(5000), i * 5000) for i in range(10)], durability=durability)
    assert [w.result() for w in writes] == [5000] * 10
    assert handle.write(path, b"abc", durability=durability).result() == 3


NAMES = ["plain", "with space", "日本語", "emoji-🚰", "new\nline", "a" * 255, "é" * 127]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_works_for_reads_writes_and_replacement(
    tmp_path: Path, handle: headrace.Handle, name: str
) -> None:
    """pytorch #98918, #103949, #116103: names beyond ASCII, and the longest possible name with its
    temporary."""
    folder = tmp_path / name
    folder.mkdir()
    path = folder / name
    handle.write(path, b"first").result()
    handle.write(path, b"second!", mode="replace").result()
    target = bytearray(7)
    handle.read(str(path), target).result()
    assert target == b"second!"
    assert os.listdir(folder) == [name]


def test_undecodable_names_work_as_bytes_and_as_str(tmp_path: Path, handle: headrace.Handle) -> None:
    raw = os.fsencode(tmp_path) + b"/\xff\xfe.bin"
    handle.write(raw, b"abc", mode="replace").result()
    target = bytearray(3)
    handle.read(os.fsdecode(raw), target).result()
    assert target == b"abc"
    missing = raw + b"-missing"
    with pytest.raises(FileNotFoundError) as caught:
        handle.read(missing, target)
    assert caught.value.filename == missing
    assert caught.value.errno == errno.ENOENT
    assert "missing" in str(caught.value)


def test_a_relative_path_is_resolved_when_the_request_is_made(
    tmp_path: Path, handle: headrace.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    monkeypatch.chdir(one)
    write = handle.write("file", b"abc", mode="replace")
    monkeypatch.chdir(two)
    write.result()
    assert (one / "file").read_bytes() == b"abc"
    assert not (two / "file").exists()


def test_names_that_are_too_long_fail_with_the_systems_error(tmp_path: Path, handle: headrace.Handle) -> None:
    for path in (tmp_path / ("x" * 256), Path("/".join(["/tmp"] + ["d" * 200] * 21))):
        with pytest.raises(headrace.TransferError) as caught:
            handle.write(path, b"abc")
        assert caught.value.errno == errno.ENAMETOOLONG


def test_a_path_of_4095_bytes_works(tmp_path: Path, handle: headrace.Handle) -> None:
    """The longest one there is. Replacing its file may need a longer one, and then says so."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    path = str(tmp_path)
    while len(path) < 4095 - 210:
        path += "/" + "d" * 150
        os.mkdir("d" * 150, dir_fd=descriptor)
        inner = os.open("d" * 150, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    path += "/" + "f" * (4095 - len(path) - 1)
    handle.write(path, b"abc").result()
    target = bytearray(3)
    handle.read(path, target).result()
    assert target == b"abc"
    try:
        handle.write(path, b"new", mode="replace").result()
    except headrace.TransferError as error:
        assert error.errno == errno.ENAMETOOLONG
    assert len(os.listdir(descriptor)) == 1
    os.close(descriptor)


def test_a_bulk_call_opens_each_file_once(tmp_path: Path, handle: headrace.Handle, frozen: object) -> None:
    folder = frozen.folder  # type: ignore[attr-defined]
    path = folder / "file"
    path.write_bytes(bytes(64 << 10))
    frozen.freeze()  # type: ignore[attr-defined]
    writes = handle.write_many([(path, b"x" * 4096, i * 4096) for i in range(16)])
    held = [name for name in open_descriptors() if name == str(path)]
    frozen.thaw()  # type: ignore[attr-defined]
    assert [w.result() for w in writes] == [4096] * 16
    assert 1 <= len(held) <= 2, "one descriptor, and one for direct I/O"
    assert str(path) not in open_descriptors()
