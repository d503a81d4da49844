# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""A checkpoint is the old one or the new one, whole, whatever happens, and nothing is left beside it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
from checkpoint_support import assert_same, only
from headrace._default import default_handle
from support import (
    FrozenFileSystem,
    as_nobody,
    in_child,
    loop_ext4,
    mounted,
    need_root,
    need_tool,
    open_descriptors,
    run_script,
)
from test_rounds import flat

FORMATS = ["torch", "torch-legacy", "safetensors"]
OLD = {"a": torch.arange(1000)}
MIB = 1 << 20


def large(megabytes: int) -> dict[str, Any]:
    """Names in their order, in which a safetensors file comes back."""
    return {f"w{i:03}": torch.full((MIB,), i, dtype=torch.uint8) for i in range(megabytes)}


def refused(number: int, path: Path, save: Any) -> None:
    """The call raises this errno for this file, and no descriptor stays open."""
    default_handle()
    before = len(open_descriptors())
    with pytest.raises(headrace.TransferError) as caught:
        save()
    assert caught.value.errno == number, caught.value
    assert os.fspath(caught.value.filename) == os.fspath(path)
    assert errno.errorcode[number] in str(caught.value)
    assert len(open_descriptors()) == before


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An ext4 of 24 MiB."""
    with loop_ext4(tmp_path_factory.mktemp("tiny"), megabytes=24) as folder:
        yield folder


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder on disk that any user can reach; the tree of this project may lie in a closed one."""
    folder = Path("/var/tmp") / f"headrace-checkpoints-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("container", FORMATS)
def test_a_full_disk_leaves_the_old_checkpoint(tiny: Path, container: Any) -> None:
    """pytorch #156955: a full disk ended the process."""
    path = tiny / "a.pt"
    headrace.save(OLD, path, format=container)
    names = sorted(os.listdir(tiny))
    for durability in ("data", "none"):
        refused(
            errno.ENOSPC,
            path,
            lambda d=durability: headrace.save(large(40), path, format=container, durability=d),
        )
    with pytest.raises(headrace.TransferError, match=r"needs 4\d+ bytes; \d+ bytes are free"):
        headrace.save(large(40), path, format=container)
    assert_same(OLD, headrace.load(path))
    assert sorted(os.listdir(tiny)) == names
    headrace.save(large(10), path, format=container)
    assert_same(large(10), headrace.load(path))
    path.unlink()


def test_a_small_file_system_in_memory_fills_up_without_harm(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs", folder=tmp_path / "ram") as folder:
        headrace.save(OLD, folder / "a.pt")
        refused(errno.ENOSPC, folder / "a.pt", lambda: headrace.save(large(64), folder / "a.pt"))
        assert_same(OLD, headrace.load(folder / "a.pt"))
        only(folder, "a.pt")


@pytest.mark.parametrize("kind", ["ramfs", "ext4 without extents"])
def test_file_systems_that_cannot_reserve_space_are_written_once(tmp_path: Path, kind: str) -> None:
    """coreweave/tensorizer PR #85: reserving by hand wrote the file twice."""
    with contextlib.ExitStack() as stack:
        if kind == "ramfs":
            folder = stack.enter_context(mounted("-t", "ramfs", "ramfs", folder=tmp_path / "ram"))
        else:
            need_root("mount")
            need_tool("mkfs.ext4")
            image = tmp_path / "image"
            with open(image, "wb") as file:
                file.truncate(64 * MIB)
            subprocess.run(
                ["mkfs.ext4", "-q", "-m0", "-O", "^extent,^64bit,^metadata_csum", image], check=True
            )
            folder = stack.enter_context(mounted("-o", "loop", str(image), folder=tmp_path / "ext"))
        obj = large(16)

        def written() -> int:
            device = os.stat(folder).st_dev
            name = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat"
            return int(Path(name).read_text().split()[6]) * 512 if os.path.exists(name) else 0

        before = written()
        for container in FORMATS:
            headrace.save(obj, folder / "a.pt", format=container)  # type: ignore[arg-type]
            assert_same(obj, headrace.load(folder / "a.pt"))
        assert written() - before < 3 * 16 * MIB * 1.3
        assert_same(obj, headrace.load(folder / "a.pt", mmap=True))
        assert {name for name in os.listdir(folder) if name != "lost+found"} == {"a.pt"}
        if kind != "ramfs":
            refused(errno.ENOSPC, folder / "b.pt", lambda: headrace.save(large(60), folder / "b.pt"))
            assert {name for name in os.listdir(folder) if name != "lost+found"} == {"a.pt"}


@pytest.mark.parametrize("container", FORMATS)
def test_the_file_size_limit_leaves_the_old_checkpoint(tmp_path: Path, container: Any) -> None:
    path = tmp_path / "a.pt"
    headrace.save(OLD, path, format=container)
    obj = large(3)  # here: torch's threads do not outlive a fork

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
        refused(errno.EFBIG, path, lambda: headrace.save(obj, path, format=container))
        headrace.save({"b": torch.ones(5)}, tmp_path / "b.pt", format=container)

    in_child(work)
    assert_same(OLD, headrace.load(path))
    only(tmp_path, "a.pt", "b.pt")


def test_folders_that_cannot_be_written_are_the_systems_errors(open_folder: Path) -> None:
    """Lightning #21800: "saved" into a folder that may not be written."""
    locked = open_folder / "locked"
    locked.mkdir()
    headrace.save(OLD, locked / "old.pt")
    locked.chmod(0o555)
    (open_folder / "file").write_bytes(b"")
    secret = open_folder / "secret.pt"
    headrace.save(OLD, secret)
    secret.chmod(0o600)

    def work() -> None:
        for name in ("new.pt", "old.pt"):
            refused(errno.EACCES, locked / name, lambda n=name: headrace.save(OLD, locked / n))
        with pytest.raises(PermissionError):
            headrace.load(secret)
        headrace.load(locked / "old.pt", mmap=True)
        refused(
            errno.ENOENT, open_folder / "no" / "a.pt", lambda: headrace.save(OLD, open_folder / "no" / "a.pt")
        )
        refused(
            errno.ENOTDIR,
            open_folder / "file" / "a.pt",
            lambda: headrace.save(OLD, open_folder / "file" / "a.pt"),
        )
        refused(errno.EISDIR, locked, lambda: headrace.save(OLD, locked, format="torch"))

    as_nobody(work)
    only(locked, "old.pt")
    only(open_folder, "locked", "file", "secret.pt")


def test_a_read_only_mount_is_erofs(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "tmpfs", folder=tmp_path / "ram") as folder:
        headrace.save(OLD, folder / "a.pt")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        refused(errno.EROFS, folder / "a.pt", lambda: headrace.save(OLD, folder / "a.pt"))
        assert_same(OLD, headrace.load(folder / "a.pt", mmap=True))
        only(folder, "a.pt")


def test_no_descriptor_left_is_emfile(tmp_path: Path) -> None:
    headrace.save(OLD, tmp_path / "a.pt")

    def work() -> None:
        headrace.save(OLD, tmp_path / "b.pt")
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limit = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for call in (
            lambda: headrace.save(OLD, tmp_path / "a.pt"),
            lambda: headrace.load(tmp_path / "a.pt"),
            lambda: headrace.load(tmp_path / "a.pt", mmap=True),
        ):
            with pytest.raises(OSError, match=r"EMFILE|Too many open files"):
                call()
        for descriptor in taken:
            os.close(descriptor)
        assert_same(OLD, headrace.load(tmp_path / "a.pt"))

    in_child(work)
    only(tmp_path, "a.pt", "b.pt")


def test_temporaries_that_may_be_in_use_stay(tmp_path: Path) -> None:
    """Only those go that are a minute old and that nobody has locked; a file's change time cannot be set."""
    fresh = tmp_path / ".headrace-1-0-00000000.tmp"
    fresh.write_bytes(b"x")
    other = tmp_path / ".headrace-notes.txt"
    other.write_bytes(b"x")
    os.utime(fresh, (0, 0))
    headrace.save(OLD, tmp_path / "a.pt")
    only(tmp_path, "a.pt", fresh.name, other.name)


@pytest.mark.slow
@pytest.mark.watchdog(150)
def test_temporaries_of_dead_processes_go_after_a_minute(tmp_path: Path) -> None:
    stale, locked = tmp_path / ".headrace-1-0-00000000.tmp", tmp_path / ".headrace-2-0-00000000.tmp"
    stale.write_bytes(b"x")
    with open(locked, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        young = os.stat(stale).st_ctime
        clock = tmp_path / "clock"
        while True:  # by the file system's own clock
            clock.write_bytes(b"")
            if os.stat(clock).st_ctime > young + 62:
                break
            threading.Event().wait(1)
        clock.unlink()
        headrace.save(OLD, tmp_path / "a.pt")
        only(tmp_path, "a.pt", locked.name)
    headrace.save(OLD, tmp_path / "a.pt")
    only(tmp_path, "a.pt")


def test_saving_over_the_file_that_mapped_tensors_come_from_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    headrace.save({"a": torch.arange(500_000), "b": torch.ones(3)}, path)
    for load in (lambda: headrace.load(path, mmap=True), lambda: torch.load(path, mmap=True)):
        mapped = load()
        mapped["a"][7] = -7
        headrace.save(mapped, path)
        again = headrace.load(path)
        assert_same(mapped, again)
        assert int(again["a"][7]) == -7


@pytest.mark.parametrize("container", FORMATS)
def test_ctrl_c_ends_a_save_and_the_old_file_stays(frozen: FrozenFileSystem, container: str) -> None:
    path = frozen.folder / "a.pt"
    headrace.save(OLD, path, format=container)  # type: ignore[arg-type]
    before = sorted(os.listdir(frozen.folder))
    code = textwrap.dedent(
        """
        import sys, time, torch, headrace
        obj = {"a": torch.zeros(20 << 20, dtype=torch.uint8)}
        handle = headrace.Handle(engine="posix", workers=1, queue_depth=1, block_bytes=1 << 20)
        headrace.save({"a": torch.ones(3)}, sys.argv[1] + ".x", format=sys.argv[2], handle=handle)
        print("ready", flush=True)
        while True:
            try:
                headrace.save(obj, sys.argv[1] + ".x", format=sys.argv[2], handle=handle)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                break
        assert int(headrace.load(sys.argv[1] + ".x")["a"].sum()) in (0, 3)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), container],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    frozen.freeze()  # it gets no further than some step of a save
    os.kill(process.pid, signal.SIGINT)
    frozen.thaw()
    thawed = time.monotonic()
    out, err = process.communicate(timeout=20)
    assert time.monotonic() < thawed + 5, "an interpreter with torch takes a second to end, and loads to look"
    assert out == "interrupted\n", err
    assert process.returncode == 0, err
    (frozen.folder / "a.pt.x").unlink()
    assert sorted(os.listdir(frozen.folder)) == before
    assert_same(OLD, headrace.load(path))


def test_ctrl_c_ends_a_load_that_hangs(tmp_path: Path) -> None:
    code = """
        import os, signal, sys, threading, time, torch, headrace
        path = sys.argv[1]
        headrace.save({"a": torch.zeros(200 << 20, dtype=torch.uint8)}, path, durability="none")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        try:
            while time.monotonic() < started + 20:
                headrace.load(path)
        except KeyboardInterrupt:
            print(f"{time.monotonic() - started:.1f}")
        headrace.load(path)
    """
    done = run_script(code, str(tmp_path / "a.pt"))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2


@pytest.mark.watchdog(600)
@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_rounds_of_saving_and_loading_leave_nothing_behind(tmp_path: Path, rounds: int) -> None:
    """pytorch #170163: memory grew with every save. Three names in rotation."""
    state = {f"w{i}": torch.randn(1000 * i + 1) for i in range(40)} | {"large": torch.randn(600_000)}
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    damaged = tmp_path / "damaged.pt"
    headrace.save(state, damaged)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)

    def work(round_: int) -> None:
        path = tmp_path / f"step{round_ % 3}.pt"
        container: Any = FORMATS[round_ % 3]
        headrace.save(state, path, format=container, durability="none", handle=handle)
        headrace.load(path, handle=handle)
        headrace.load(path, mmap=True, handle=handle)
        headrace.load(path, into=target, handle=handle)
        with headrace.open(path, handle=handle) as opened:
            opened["large"][5:10]
        with pytest.raises(headrace.FormatError):
            headrace.load(damaged, handle=handle)
        with pytest.raises(FileNotFoundError):
            headrace.save(state, tmp_path / "none" / "a.pt", handle=handle)

    with headrace.Handle(staging_bytes=8 * MIB) as handle:
        flat(tmp_path, work, rounds=rounds)
    only(tmp_path, "damaged.pt", "step0.pt", "step1.pt", "step2.pt")
