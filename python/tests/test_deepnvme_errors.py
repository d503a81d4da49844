# SPDX-License-Identifier: Apache-2.0
"""Where DeepSpeed's handles abort, hang, print, return -1 or hide a short transfer, headrace.deepnvme raises.

After each of these the process lives, nothing is pending, and the same handle works.
"""

from __future__ import annotations

import errno
import logging
import os
import pickle
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import headrace  # noqa: E402
import support  # noqa: E402
from headrace import deepnvme  # noqa: E402

BYTE = torch.empty(0, dtype=torch.uint8)


@pytest.fixture
def handle(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[deepnvme.aio_handle]:
    """A handle that must be quiet, idle and of use when the test is over."""
    handle = deepnvme.aio_handle(4096, 4, False, True, 2)
    yield handle
    assert handle.wait() == 0
    data = torch.arange(1000)
    assert handle.sync_pwrite(data, str(tmp_path / "afterwards")) == 1
    target = torch.zeros_like(data)
    assert handle.sync_pread(target, str(tmp_path / "afterwards")) == 1
    assert torch.equal(target, data)
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder on disk that any user can reach and fill; the tree may lie in a closed one."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-open-", dir="/var/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def zeros(count: int) -> Any:
    return torch.zeros(count, dtype=torch.uint8)


# ---- files that are not there, or no files ----


@pytest.mark.parametrize("method", ["read", "pread", "sync_pread", "async_pread"])
def test_reading_a_missing_file_raises_at_the_call(handle: Any, tmp_path: Path, method: str) -> None:
    missing = str(tmp_path / "missing")
    arguments = {"read": (False,), "pread": (False, True)}.get(method, ())
    with pytest.raises(FileNotFoundError) as caught:
        getattr(handle, method)(zeros(10), missing, *arguments)
    assert isinstance(caught.value, headrace.TransferError)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == missing
    assert missing in str(caught.value)


def test_the_functions_of_the_module_raise_for_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        deepnvme.aio_read(zeros(10), str(tmp_path / "missing"), 4096, 8, False, False, False)
    with pytest.raises(FileNotFoundError):
        deepnvme.aio_write(zeros(10), str(tmp_path / "missing" / "file"), 4096, 8, False, False, False)


@pytest.mark.parametrize("method", ["sync_pwrite", "async_pwrite", "sync_pread", "async_pread"])
def test_a_directory_raises(handle: Any, tmp_path: Path, method: str) -> None:
    with pytest.raises(IsADirectoryError):
        getattr(handle, method)(zeros(10), str(tmp_path))


def test_a_fifo_raises_and_does_not_hang(handle: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises((headrace.TransferError, ValueError)):
        handle.sync_pread(zeros(10), str(tmp_path / "fifo"))


def test_a_file_that_may_not_be_opened_raises(open_to_all: Path) -> None:
    locked = open_to_all / "locked"
    locked.write_bytes(b"x" * 10)
    locked.chmod(0)

    def work() -> None:
        handle = deepnvme.aio_handle()
        with pytest.raises(PermissionError):
            handle.sync_pread(zeros(10), str(locked))
        with pytest.raises(PermissionError):
            handle.async_pwrite(zeros(10), str(locked))
        assert handle.wait() == 0

    support.as_nobody(work)


@pytest.mark.parametrize("fd", [-1, 1 << 40])
def test_what_is_no_descriptor_is_a_value_error(handle: Any, fd: int) -> None:
    with pytest.raises(ValueError):
        handle.async_pwrite(zeros(10), fd)


def test_a_closed_descriptor_raises_and_does_not_hang(handle: Any, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    os.close(fd)
    with pytest.raises(OSError) as caught:
        handle.async_pwrite(zeros(10), fd)
    assert caught.value.errno == errno.EBADF


def test_a_read_only_descriptor_raises(handle: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError) as caught:
            handle.async_pwrite(zeros(10), fd)
        assert caught.value.errno == errno.EBADF
    finally:
        os.close(fd)


# ---- short files and full disks ----


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "ordinary"])
@pytest.mark.parametrize("offset", [0, 100, 2000, 1 << 40])
def test_a_file_that_ends_early_raises_with_the_count(
    handle: Any, tmp_path: Path, offset: int, locked: bool
) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1124))
    buffer = handle.new_cpu_locked_tensor(1125, BYTE) if locked else zeros(1125)
    with pytest.raises(EOFError) as caught:
        handle.sync_pread(buffer, str(file), offset)
    assert isinstance(caught.value, headrace.EndOfFileError)
    assert caught.value.transferred == max(0, 1124 - offset)
    assert caught.value.length == 1125
    assert caught.value.offset == offset
    assert handle.async_pread(buffer, str(file), offset) == 0
    with pytest.raises(headrace.EndOfFileError):
        handle.wait()
    with pytest.raises(headrace.EndOfFileError):
        handle.read(buffer, str(file), False, offset)


def test_aio_read_of_a_file_of_another_size_tells_both(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1000))
    for size in (999, 1001):
        with pytest.raises(ValueError, match=f"{size} bytes .* has 1000"):
            deepnvme.aio_read(zeros(size), str(file), 4096, 8, False, False, False)


def test_a_full_disk_raises(handle: Any, tmp_path: Path) -> None:
    with support.loop_ext4(tmp_path, megabytes=16) as folder:
        file = str(folder / "file")
        assert handle.async_pwrite(handle.new_cpu_locked_tensor(32 << 20, BYTE), file) == 0
        with pytest.raises(OSError) as caught:
            handle.wait()
        assert caught.value.errno == errno.ENOSPC
        assert isinstance(caught.value, headrace.TransferError)


def test_dev_full_raises(handle: Any) -> None:
    with pytest.raises(OSError):
        handle.sync_pwrite(zeros(100_000), "/dev/full")


def test_the_file_size_limit_raises(tmp_path: Path) -> None:
    code = """
    import errno, resource, sys, torch
    from headrace import deepnvme
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    handle = deepnvme.aio_handle()
    try:
        handle.sync_pwrite(torch.zeros(2 << 20, dtype=torch.uint8), sys.argv[1])
    except OSError as error:
        print(error.errno == errno.EFBIG)
    print(handle.sync_pwrite(torch.zeros(1000), sys.argv[2]))
    """
    done = support.run_script(code, str(tmp_path / "file"), str(tmp_path / "small"))
    assert (done.returncode, done.stdout.split()) == (0, ["True", "1"]), done.stderr


def test_errors_survive_pickling(handle: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        handle.sync_pread(zeros(10), str(tmp_path / "missing"))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy)) == (type(caught.value), str(caught.value))


# ---- several failures ----


def test_a_wait_completes_everything_and_then_raises_the_first_failure(handle: Any, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"x")
    handle.async_pwrite(zeros(5000), str(tmp_path / "a"))
    handle.async_pread(zeros(10), str(tmp_path / "short"))
    handle.async_pread(zeros(20), str(tmp_path / "short"))
    handle.async_pwrite(zeros(6000), str(tmp_path / "b"))
    with pytest.raises(headrace.EndOfFileError) as caught:
        handle.wait()
    assert caught.value.length == 10
    if hasattr(caught.value, "__notes__"):
        assert "2 of 4" in caught.value.__notes__[0]
    assert os.path.getsize(tmp_path / "a") == 5000
    assert os.path.getsize(tmp_path / "b") == 6000


def test_a_sync_call_raises_what_was_pending_and_failed(handle: Any, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"x")
    handle.async_pread(zeros(10), str(tmp_path / "short"))
    with pytest.raises(headrace.EndOfFileError):
        handle.sync_pwrite(zeros(5000), str(tmp_path / "a"))
    assert os.path.getsize(tmp_path / "a") == 5000


# ---- validate ----


@pytest.mark.parametrize("size", [10, 20 << 20])
def test_validate_raises_where_the_file_differs(handle: Any, tmp_path: Path, size: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(size + 100))
    buffer = zeros(size)
    assert handle.pread(buffer, str(file), True, True, 50) == 0
    assert handle.wait() == 1
    assert handle.pwrite(buffer, str(file), True, True, 50) == 0
    buffer[size - 3] = 1
    settle(handle)
    with open(file, "r+b") as other:
        other.seek(50 + size - 3)
        other.write(b"\x02")
    with pytest.raises(headrace.TransferError) as caught:
        handle.wait()
    assert caught.value.errno == errno.EIO
    assert caught.value.operation == "validate"
    assert str(50 + size - 3) in str(caught.value)


def settle(handle: Any) -> None:
    """Lets pending transfers end without taking them."""
    for operation in handle._pending._waiting:
        operation.transfer.exception()


# ---- arguments ----


@pytest.mark.parametrize("name", ["block_size", "queue_depth", "intra_op_parallelism"])
@pytest.mark.parametrize("value", [0, -1, -(1 << 70), 1 << 70])
def test_a_constructor_value_out_of_range_is_a_value_error(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        deepnvme.aio_handle(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_size", "1048576"),
        ("block_size", 1.0),
        ("queue_depth", None),
        ("queue_depth", True),
        ("single_submit", "false"),
        ("overlap_events", "true"),
        ("overlap_events", None),
        ("intra_op_parallelism", [1]),
    ],
)
def test_a_constructor_value_of_the_wrong_type_is_a_type_error(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        deepnvme.aio_handle(**{name: value})


@pytest.mark.parametrize("offset", [-1, -(1 << 63), 1 << 63, 1 << 100])
@pytest.mark.parametrize("method", ["sync_pread", "async_pread", "sync_pwrite", "async_pwrite"])
def test_an_offset_out_of_range_is_a_value_error(
    handle: Any, tmp_path: Path, method: str, offset: int
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    with pytest.raises(ValueError):
        getattr(handle, method)(zeros(10), str(file), offset)
    with pytest.raises(ValueError):
        handle.pread(zeros(10), str(file), False, True, offset)
    assert file.read_bytes() == b"x" * 100


def test_an_offset_whose_range_ends_beyond_int64_raises(handle: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    for method in (handle.sync_pwrite, handle.async_pwrite):
        with pytest.raises((ValueError, OSError)):
            method(zeros(10), str(file), (1 << 63) - 5)
    assert not file.exists() or file.stat().st_size == 0


@pytest.mark.parametrize("method", ["sync_pread", "async_pread", "sync_pwrite"])
def test_only_async_pwrite_takes_a_descriptor(handle: Any, method: str) -> None:
    with pytest.raises(TypeError, match="async_pwrite"):
        getattr(handle, method)(zeros(10), 1)
    with pytest.raises(TypeError):
        handle.pwrite(zeros(10), 1, False, True)
    with pytest.raises(TypeError):
        handle.async_pread(zeros(10), fd=1)


@pytest.mark.parametrize("buffer", [None, b"bytes", bytearray(10), [zeros(10)], 5])
def test_a_buffer_that_is_no_tensor_is_a_type_error(handle: Any, tmp_path: Path, buffer: object) -> None:
    for method in (handle.sync_pread, handle.async_pread, handle.sync_pwrite, handle.async_pwrite):
        with pytest.raises(TypeError):
            method(buffer, str(tmp_path / "file"))
    with pytest.raises(TypeError):
        handle.is_pinned(buffer)
    with pytest.raises(TypeError):
        handle.free_cpu_locked_tensor(buffer)
    with pytest.raises(TypeError):
        handle.new_cpu_locked_tensor(10, buffer)
    assert not (tmp_path / "file").exists()


def test_calls_with_missing_or_doubled_arguments_are_type_errors(handle: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "file")
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (handle.pread, (zeros(1), file, False), {}),
        (handle.pread, (zeros(1), file, False, True), {"async": True}),
        (handle.pread, (zeros(1), file, False, True, 0, 0), {}),
        (handle.pread, (zeros(1), file, False, True, 0), {"file_offset": 0}),
        (handle.pwrite, (zeros(1), file, False, True), {"offset": 0}),
        (handle.pwrite, (zeros(1), file, False, "true"), {}),
        (handle.async_pwrite, (zeros(1),), {}),
        (handle.async_pwrite, (zeros(1), file), {"fd": 1}),
        (handle.async_pwrite, (zeros(1), True), {}),
        (handle.async_pwrite, (zeros(1),), {"fd": "1"}),
        (handle.sync_pwrite, (zeros(1), file, None), {}),
        (handle.sync_pwrite, (zeros(1), file, 1.5), {}),
        (handle.new_cpu_locked_tensor, (2.5, BYTE), {}),
    ]
    for function, positional, named in calls:
        with pytest.raises(TypeError):
            function(*positional, **named)
    assert handle.wait() == 0
    assert not Path(file).exists()


def test_a_name_with_a_nul_raises(handle: Any) -> None:
    with pytest.raises(ValueError):
        handle.sync_pwrite(zeros(1), "a\0b")


def test_tensors_without_bytes_of_their_own_are_refused(handle: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1000))
    shared = zeros(1).expand(10)
    conjugate = torch.zeros(5, dtype=torch.complex64).conj()
    for target in (torch.empty(4, device="meta"), torch.eye(3).to_sparse(), shared, conjugate):
        with pytest.raises(ValueError):
            handle.sync_pread(target, str(file))
    for source in (torch.empty(4, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(ValueError):
            handle.sync_pwrite(source, str(file))
    assert file.read_bytes() == bytes(1000)


def test_locked_tensors_of_impossible_sizes_raise(handle: Any) -> None:
    with pytest.raises(ValueError):
        handle.new_cpu_locked_tensor(-1, BYTE)
    for count in (1 << 62, 1 << 50):
        with pytest.raises(MemoryError):
            handle.new_cpu_locked_tensor(count, torch.empty(0, dtype=torch.float64))
    pins = deepnvme.pin_handle()
    with pytest.raises(ValueError):
        pins.free_cpu_locked_tensor_by_ptr(-1)
    with pytest.raises(TypeError):
        pins.free_cpu_locked_tensor_by_ptr("0x7f")


def test_a_small_limit_of_locked_memory_is_told_once_and_nothing_fails(open_to_all: Path) -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        records: list[str] = []
        keeper = logging.Handler()
        keeper.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("headrace").addHandler(keeper)
        handle, pins = deepnvme.aio_handle(), deepnvme.pin_handle()
        tensors = [someone.new_cpu_locked_tensor(16 << 20, BYTE) for someone in (handle, pins)]
        assert all(handle.is_pinned(tensor) for tensor in tensors)
        tensors[0].numpy()[:] = 7
        assert handle.sync_pwrite(tensors[0], str(open_to_all / "file")) == 1
        assert handle.sync_pread(tensors[1], str(open_to_all / "file")) == 1
        assert bytes(tensors[1].numpy()) == b"\x07" * (16 << 20)
        assert [pins.free_cpu_locked_tensor(tensor) for tensor in tensors] == [True, True]
        told = [record for record in records if "RLIMIT_MEMLOCK is 65536 bytes" in record]
        assert len(told) == 1

    support.as_nobody(work)


def test_gds_handle_says_that_it_is_not_there() -> None:
    with pytest.raises(headrace.UnavailableError, match="GPUDirect"):
        deepnvme.gds_handle(block_size=1 << 20)
