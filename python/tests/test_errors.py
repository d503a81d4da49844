# SPDX-License-Identifier: Apache-2.0
"""Exceptions say which operation failed, on which file and range, with which errno; they are builtin ones
too, and pickle."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import threading
from pathlib import Path

import headrace
import pytest
from headrace import _errors
from support import random_bytes

CLASSES = [
    (headrace.EndOfFileError, EOFError),
    (headrace.NotFoundError, FileNotFoundError),
    (headrace.PermissionDeniedError, PermissionError),
    (headrace.DirectoryError, IsADirectoryError),
    (headrace.NotDirectoryError, NotADirectoryError),
    (headrace.ExistsError, FileExistsError),
    (headrace.InvalidRequestError, ValueError),
    (headrace.ClosedError, ValueError),
    (headrace.UnavailableError, OSError),
    (headrace.LimitError, OSError),
    (headrace.AbortedError, OSError),
]


@pytest.mark.parametrize(("ours", "builtin"), CLASSES)
def test_every_class_derives_from_transfer_error_and_the_builtin_one(ours: type, builtin: type) -> None:
    assert issubclass(ours, headrace.TransferError)
    assert issubclass(ours, builtin)
    assert issubclass(ours, OSError)


@pytest.mark.parametrize("filename", ["file", b"file", Path("file"), 7, None])
@pytest.mark.parametrize(
    "code", ["system", "end_of_file", "aborted", "closed", "unavailable", "limit_reached"]
)
def test_errors_survive_pickling_and_copying(code: str, filename: object) -> None:
    error = _errors.make_exception(
        code, errno.ENOENT, "read", filename, 4096, 100, 7, "read of 'file' failed"
    )
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert isinstance(again, headrace.TransferError)
        assert (again.errno, again.filename) == (errno.ENOENT, filename)
        assert (again.operation, again.offset, again.length, again.transferred) == ("read", 4096, 100, 7)
        assert str(again) == "read of 'file' failed"
        assert again.args == error.args


def test_an_error_without_an_errno_has_none(tmp_path: Path, handle: headrace.Handle) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    error = handle.read(path, bytearray(10)).exception()
    assert isinstance(error, headrace.EndOfFileError)
    assert error.errno is None
    assert pickle.loads(pickle.dumps(error)).transferred == 3


def test_the_end_of_the_file_names_both_sizes(tmp_path: Path, engine_handle: headrace.Handle) -> None:
    """DeepSpeed #3376: sizes that differ ended the process."""
    path = tmp_path / "file"
    data = random_bytes(10_000)
    path.write_bytes(data)
    target = bytearray(20_000)
    with pytest.raises(EOFError) as caught:
        engine_handle.read(path, target, offset=100).result()
    error = caught.value
    assert isinstance(error, headrace.EndOfFileError)
    assert (error.offset, error.length, error.transferred, error.operation) == (100, 20_000, 9900, "read")
    assert error.filename == path
    assert "20000" in str(error)
    assert "the file has 10000 bytes; read less, or take what there is with partial=True" in str(error)
    assert "end_of_file" not in str(error)
    assert target[:9900] == data[100:]
    assert engine_handle.read(path, target, offset=100, partial=True).result() == 9900
    smaller = bytearray(10)
    assert engine_handle.read(path, smaller).result() == 10


@pytest.mark.parametrize("offset", [10_000, 10_001, 1 << 40, (1 << 63) - 20_001])
def test_an_offset_past_the_end_reads_nothing(
    tmp_path: Path, engine_handle: headrace.Handle, offset: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    with pytest.raises(EOFError) as caught:
        engine_handle.read(path, bytearray(20_000), offset=offset).result()
    assert caught.value.transferred == 0  # type: ignore[attr-defined]
    assert engine_handle.read(path, bytearray(20_000), offset=offset, partial=True).result() == 0


@pytest.mark.parametrize("offset", [-1, (1 << 63) - 5, 1 << 63, 1 << 70, 1.5, "0"])
def test_an_offset_that_no_file_has_is_refused(
    tmp_path: Path, handle: headrace.Handle, offset: object
) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    for start in (handle.read, handle.write):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            start(tmp_path / "file", bytearray(10), offset=offset)  # type: ignore[arg-type]
    with pytest.raises((ValueError, TypeError, OverflowError)):
        handle.read_many([(tmp_path / "file", bytearray(10), offset)])  # type: ignore[list-item]
    assert (tmp_path / "file").stat().st_size == 100


def test_errors_of_opening_come_at_submission_with_errno_and_filename(
    tmp_path: Path, engine_handle: headrace.Handle
) -> None:
    """axboe/liburing #1384: errors reported as "errno 0"."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    cases = [
        (tmp_path / "missing", "read", errno.ENOENT, FileNotFoundError),
        (tmp_path / "missing" / "file", "write", errno.ENOENT, FileNotFoundError),
        (tmp_path / "folder", "read", errno.EISDIR, IsADirectoryError),
        (tmp_path / "folder", "write", errno.EISDIR, IsADirectoryError),
        (tmp_path / "file" / "below", "read", errno.ENOTDIR, NotADirectoryError),
    ]
    for path, operation, number, builtin in cases:
        with pytest.raises(builtin) as caught:
            getattr(engine_handle, operation)(path, bytearray(1))
        error = caught.value
        assert isinstance(error, headrace.TransferError)
        assert (error.errno, error.filename) == (number, path)
        assert errno.errorcode[number] in str(error)
        assert str(path) in str(error)
        assert error.strerror == os.strerror(number)
    assert engine_handle.read(tmp_path / "file", bytearray(1)).result() == 1


@pytest.mark.parametrize("path", ["", b""])
def test_an_empty_path_is_called_empty(handle: headrace.Handle, path: str | bytes) -> None:
    starts = [
        lambda: handle.read(path, bytearray(1)),
        lambda: handle.write(path, b"x"),
        lambda: handle.write(path, b"x", mode="replace"),
        lambda: handle.read_many([(path, bytearray(1))]),
        lambda: handle.replace(path, size=1),
        lambda: headrace.File(path),
    ]
    for start in starts:
        with pytest.raises(FileNotFoundError, match="the path is empty") as caught:
            start()
        assert caught.value.filename == path


BLOCKS = "multiples of 4096 from 4096 to 1073741824"
OUT_OF_RANGE = [
    ("workers", 0, "1 to 64"),
    ("workers", 1000, "1 to 64"),
    ("workers", 1 << 40, "1 to 64"),
    ("queue_depth", -1, "1 to 4096"),
    ("queue_depth", 4097, "1 to 4096"),
    ("block_bytes", 1, BLOCKS),
    ("block_bytes", 5000, BLOCKS),
    ("block_bytes", 1 << 31, BLOCKS),
    ("staging_bytes", 0, "4096 or more"),
    ("requests_max", 0, "1 to 4294967295"),
    ("requests_max", 1 << 32, "1 to 4294967295"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), OUT_OF_RANGE)
def test_an_option_out_of_range_is_told_with_its_name_value_and_range(
    name: str, value: int, allowed: str
) -> None:
    with pytest.raises(ValueError) as caught:
        headrace.Handle(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"{name} is {value}; allowed: {allowed}, or None for the default"


def test_other_options_are_refused_in_the_same_words(tmp_path: Path, handle: headrace.Handle) -> None:
    with pytest.raises(ValueError, match="priority is 128; allowed: -128 to 127"):
        handle.read(tmp_path / "file", bytearray(1), priority=128)
    with pytest.raises(ValueError, match="offset is -1; allowed: 0 to 2"):
        handle.read(tmp_path / "file", bytearray(1), offset=-1)
    with pytest.raises(ValueError, match="copy is 'maybe'; allowed: 'auto', 'always', 'never'"):
        handle.read(tmp_path / "file", bytearray(1), copy="maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="staging_bytes is 4096; allowed: 8192 or more with 2 workers"):
        headrace.Handle(workers=2, staging_bytes=4096)


def test_a_fifo_is_refused_at_once(tmp_path: Path, handle: headrace.Handle) -> None:
    """Opening one waits for the other end, for ever: so it must not be opened like a file."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    for operation in ("read", "write"):
        with pytest.raises(headrace.TransferError) as caught:
            getattr(handle, operation)(path, bytearray(1))
        assert caught.value.errno == errno.ESPIPE
        assert caught.value.filename == path
    reader, writer = os.pipe()
    with pytest.raises(headrace.TransferError) as caught:
        handle.read(reader, bytearray(1))
    assert caught.value.errno == errno.ESPIPE
    os.close(reader)
    os.close(writer)


def test_a_full_device_raises_at_completion(engine_handle: headrace.Handle) -> None:
    transfer = engine_handle.write("/dev/full", bytes(100_001), offset=4095)
    with pytest.raises(headrace.TransferError) as caught:
        transfer.result()
    error = caught.value
    assert (error.errno, error.filename, error.operation) == (errno.ENOSPC, "/dev/full", "write")
    assert (error.offset, error.length) == (4095, 100_001)
    assert "ENOSPC" in str(error)
    assert isinstance(transfer.exception(), headrace.TransferError)


def test_reading_dev_zero_works(handle: headrace.Handle) -> None:
    target = bytearray(b"x" * 100_000)
    assert handle.read("/dev/zero", target).result() == 100_000
    assert not any(target)


def test_a_file_cut_short_while_it_is_read_ends_early(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "file"
    size = 32 << 20
    stop = threading.Event()

    def cut() -> None:
        while not stop.is_set():
            os.truncate(path, 1 << 20)
            os.truncate(path, size)

    path.write_bytes(random_bytes(size))
    thread = threading.Thread(target=cut)
    thread.start()
    try:
        with headrace.Handle(engine=engine) as h:
            for _ in range(20):
                target = bytearray(size)
                transfer = h.read(path, target, cache="bypass")
                error = transfer.exception()
                if error is None:
                    assert transfer.result() == size
                else:
                    assert isinstance(error, headrace.EndOfFileError)
                    assert 0 <= error.transferred < size
    finally:
        stop.set()
        thread.join()


def test_a_descriptor_opened_for_reading_cannot_be_written(tmp_path: Path, handle: headrace.Handle) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with headrace.File(tmp_path / "file") as file, pytest.raises(headrace.TransferError) as caught:
        handle.write(file, b"xyz").result()
    assert caught.value.errno == errno.EBADF
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(headrace.TransferError) as caught:
        handle.write(descriptor, b"xyz").result()
    os.close(descriptor)
    assert caught.value.errno == errno.EBADF
    assert (tmp_path / "file").read_bytes() == b"abc"
