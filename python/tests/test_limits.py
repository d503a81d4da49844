# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT017
"""Limits of the system and of other users: each becomes an exception with its errno, and the handle goes
on."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import headrace
import pytest
from support import as_nobody, disk_folder, in_child, loop_ext4, mounted, need_root, random_bytes


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder on disk that any user can reach and fill; the tree of this project may lie in a closed one."""
    folder = Path("/var/tmp") / f"headrace-open-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def expect(number: int, path: Path, start: object) -> None:
    try:
        start()  # type: ignore[operator]
    except headrace.TransferError as error:
        assert error.errno == number, error
        assert os.fspath(error.filename) == os.fspath(path), error
        assert errno.errorcode[number] in str(error)
    else:
        raise AssertionError("nothing was raised")


def test_permissions_of_another_user_are_respected(open_folder: Path) -> None:
    secret = open_folder / "secret"
    secret.write_bytes(b"abc")
    secret.chmod(0o600)
    locked = open_folder / "locked"
    locked.mkdir(mode=0o555)

    def work() -> None:
        with headrace.Handle() as h:
            expect(errno.EACCES, secret, lambda: h.read(secret, bytearray(3)))
            expect(errno.EACCES, secret, lambda: h.write(secret, b"xyz"))
            expect(errno.EACCES, locked / "new", lambda: h.write(locked / "new", b"xyz"))
            expect(
                errno.EACCES, locked / "new", lambda: h.write(locked / "new", b"xyz", mode="replace").result()
            )
            with pytest.raises(PermissionError):
                h.read(secret, bytearray(3))
            assert h.write(open_folder / "mine", b"abc").result() == 3

    as_nobody(work)
    assert os.listdir(locked) == []


def test_the_file_size_limit_is_efbig(tmp_path: Path, engine: str) -> None:
    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # a library must not need the program to ignore it
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        with headrace.Handle(engine=engine) as h:
            path = tmp_path / "file"
            transfer = h.write(path, bytes(300_000))
            error = transfer.exception()
            assert isinstance(error, headrace.TransferError), error
            assert error.errno == errno.EFBIG, error
            assert error.filename == path
            assert h.write(path, bytes(50_000)).result() == 50_000

    in_child(work)


def test_no_descriptor_left_is_emfile_and_the_handle_goes_on(tmp_path: Path, engine: str) -> None:
    def work() -> None:
        path = tmp_path / "file"
        path.write_bytes(b"abc")
        with headrace.Handle(engine=engine) as h:
            h.read(path, bytearray(3)).result()
            limit = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            taken = []
            while True:
                try:
                    taken.append(os.open(path, os.O_RDONLY))
                except OSError:
                    break
            expect(errno.EMFILE, path, lambda: h.read(path, bytearray(3)))
            expect(errno.EMFILE, path, lambda: h.write(path, b"abc"))
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit + 100, hard))
            assert h.read(path, bytearray(3)).result() == 3

    in_child(work)


def test_no_descriptor_left_fails_a_new_handle_with_its_errno() -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        try:
            h = headrace.Handle()
        except OSError as error:
            assert error.errno == errno.EMFILE, error
        else:
            h.close()

    in_child(work)


@pytest.mark.parametrize("kibibytes", [0, 64, 8192])
def test_a_small_locked_memory_limit_degrades_and_never_aborts(
    open_folder: Path, engine: str, kibibytes: int
) -> None:
    """liburing #365, sirius PR 800: registration refused, process aborted."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (kibibytes << 10, kibibytes << 10))
        data = random_bytes(20 << 20)
        try:
            h = headrace.Handle(engine=engine)
        except headrace.UnavailableError as error:
            assert kibibytes == 0, error
            assert "ulimit -l" in str(error)
            h = headrace.Handle()
        with h:
            path = open_folder / "file"
            assert h.write(path, data, mode="replace").result() == len(data)
            buffer = headrace.Buffer(len(data))
            memoryview(buffer)[:] = bytes(len(data))
            if kibibytes < 8192:
                assert not buffer.locked
            transfer = h.read(path, buffer, cache="bypass")
            assert transfer.result() == len(data)
            assert bytes(buffer) == data
            target = bytearray(len(data))
            assert h.read(path, target, cache="bypass").result() == len(data)
            assert target == data

    as_nobody(work)


def test_a_full_disk_is_enospc_and_leaves_the_handle_usable(tmp_path: Path, engine: str) -> None:
    with loop_ext4(tmp_path, megabytes=16) as folder, headrace.Handle(engine=engine) as h:
        path = folder / "file"
        transfer = h.write(path, random_bytes(64 << 20))
        error = transfer.exception()
        assert isinstance(error, headrace.TransferError)
        assert (error.errno, error.filename) == (errno.ENOSPC, path)
        path.unlink(missing_ok=True)
        assert h.write(path, bytes(1 << 20)).result() == 1 << 20
        expect(errno.ENOSPC, folder / "big", lambda: h.replace(folder / "big", size=64 << 20))
        expect(
            errno.ENOSPC,
            folder / "big",
            lambda: h.write(folder / "big", bytes(64 << 20), mode="replace").result(),
        )
        assert sorted(p.name for p in folder.iterdir()) == ["file", "lost+found"]


@pytest.mark.parametrize("mode", ["create", "update", "truncate"])
def test_a_file_made_by_a_failed_write_keeps_no_unwritten_zeros(
    tmp_path: Path, engine: str, mode: str
) -> None:
    with (
        loop_ext4(tmp_path, megabytes=16) as folder,
        headrace.Handle(engine=engine, block_bytes=1 << 20) as h,
    ):
        path = folder / "file"
        data = random_bytes(64 << 20)
        transfer = h.write(path, data, mode=mode)  # type: ignore[arg-type]
        assert isinstance(transfer.exception(), headrace.TransferError)
        left = path.read_bytes() if path.exists() else b""
        assert left == data[: len(left)]


def test_a_read_only_mount_is_erofs(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", folder=tmp_path / "ro") as folder:
        (folder / "file").write_bytes(b"abc")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with headrace.Handle() as h:
            expect(errno.EROFS, folder / "file", lambda: h.write(folder / "file", b"xyz"))
            expect(errno.EROFS, folder / "new", lambda: h.write(folder / "new", b"xyz", mode="create"))
            expect(
                errno.EROFS,
                folder / "file",
                lambda: h.write(folder / "file", b"xyz", mode="replace").result(),
            )
            target = bytearray(3)
            assert h.read(folder / "file", target).result() == 3
            assert target == b"abc"


def test_a_device_that_lost_its_end_is_eio(tmp_path: Path, engine: str) -> None:
    """The loop file of a mounted ext4 is cut: the device still claims its old size, and answers EIO
    beyond."""
    with loop_ext4(tmp_path, megabytes=32) as folder, headrace.Handle(engine=engine) as h:
        path = folder / "file"
        path.write_bytes(random_bytes(20 << 20))
        os.sync()
        os.truncate(tmp_path / "ext4.img", 4 << 20)
        transfer = h.read(path, bytearray(20 << 20), cache="bypass")
        error = transfer.exception()
        assert isinstance(error, headrace.TransferError), error
        assert error.errno == errno.EIO
        assert error.filename == path
        assert "EIO" in str(error)
        (tmp_path / "other").write_bytes(b"abc")
        assert h.read(tmp_path / "other", bytearray(3)).result() == 3


def test_a_file_system_without_direct_io_is_used_through_the_page_cache(tmp_path: Path, engine: str) -> None:
    """kvikio #125: a file system that refuses O_DIRECT made the library unusable."""
    with (
        mounted("-t", "ramfs", "ramfs", folder=tmp_path / "ram") as folder,
        headrace.Handle(engine=engine) as h,
    ):
        data = random_bytes(5_000_001)
        path = folder / "file"
        assert h.write(path, data).result() == len(data)
        target = bytearray(len(data))
        transfer = h.read(path, target)
        assert transfer.result() == len(data)
        assert target == data
        assert transfer.route is not None
        assert not transfer.route.direct
        assert "buffered" in transfer.route.why
        with (
            headrace.Handle(engine=engine, direct="required") as strict,
            pytest.raises(headrace.TransferError),
        ):
            strict.read(path, target).result()


def test_the_temporary_files_of_these_tests_are_on_disk(tmp_path: Path) -> None:
    need_root("to know that the loop devices above are real")
    assert disk_folder() in [tmp_path, *tmp_path.parents]
