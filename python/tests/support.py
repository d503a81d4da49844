# SPDX-License-Identifier: Apache-2.0
"""What the tests are made of: file systems, other processes, and other users."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace._measure import evict as evict
from headrace._measure import file_system_of as file_system_of

ENGINES = [info.name for info in headrace.probe_engines() if info.available and info.name != "null"]
NOBODY = 65534
NOT_ON_DISK = {"tmpfs", "ramfs", "overlay", "nfs"}


def disk_folder() -> Path:
    """A folder on a real file system: tmpfs accepts direct I/O of any alignment and so proves nothing."""
    build = Path(__file__).resolve().parents[2] / "build"
    for folder in (build, Path("/var/tmp"), Path("/tmp")):
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            if os.access(folder, os.W_OK) and file_system_of(folder) not in NOT_ON_DISK:
                return folder
    return Path("/var/tmp")


def random_bytes(count: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(count)


def open_descriptors() -> list[str]:
    """What the descriptors of this process name."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return found


def status_bytes(field: str) -> int:
    """VmRSS, VmLck and the like of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


@contextlib.contextmanager
def highest_resident() -> Iterator[Callable[[], int]]:
    """The call tells, after the block, the most bytes that were resident in it above those before."""
    before = highest = status_bytes("VmRSS")
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.002):
            highest = max(highest, status_bytes("VmRSS"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: highest - before
    finally:
        done.set()
        watcher.join()


def is_mapped(address: int, size: int) -> bool:
    """True when all of these addresses belong to one mapping of this process."""
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address and address + size <= last:
            return True
    return False


def run_script(
    code: str, *arguments: str, before: tuple[str, ...] = (), timeout: float = 50
) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a fresh interpreter. It must not leak: nanobind says so on stderr when the
    interpreter ends."""
    command = [*before, sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert "nanobind" not in done.stderr, done.stderr
    return done


def in_child(work: Callable[[], Any], timeout_s: float = 30) -> None:
    """Runs `work` in a forked child. What it raises there fails the test here."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested
        child = os.fork()
    if child == 0:
        signal.alarm(int(timeout_s))
        try:
            os.close(reader)
            try:
                work()
            except BaseException:
                os.write(writer, traceback.format_exc().encode())
                os._exit(1)
            os._exit(0)
        finally:
            os._exit(2)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        report = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if status != 0:
        report = (
            report
            or f"the child ended with status {status} (a multiple of 256: its exit code; else a signal)"
        )
        pytest.fail(report, pytrace=False)


def as_nobody(work: Callable[[], Any]) -> None:
    """in_child, under a user id that no limit and no permission makes an exception for."""
    need_root("another user id")

    def lower() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    in_child(lower)


def wait_until(condition: Callable[[], object]) -> None:
    """Watches what another thread brings about; the watchdog ends a test where it never comes."""
    while not condition():
        os.sched_yield()


def wait_until_asleep(pid: int) -> None:
    """Until the main thread of a process sleeps, many times in a row, so that it is in a wait."""
    seen = 0
    while seen < 50:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        seen = seen + 1 if state == "S" else 0
        os.sched_yield()


def need_root(why: str) -> None:
    if os.geteuid() != 0:
        pytest.skip(f"needs root: {why}")


def need_tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@contextlib.contextmanager
def mounted(*arguments: str, folder: Path) -> Iterator[Path]:
    """mount(8), undone at the end; skips with the reason where mounting is not possible."""
    need_root("mount")
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mount {' '.join(arguments)} failed: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def loop_ext4(tmp_path: Path, megabytes: int) -> Iterator[Path]:
    """A small ext4 of its own."""
    need_root("mount")
    need_tool("mkfs.ext4")
    image = tmp_path / "ext4.img"
    with open(image, "wb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    with mounted("-o", "loop", str(image), folder=tmp_path / "ext4") as folder:
        yield folder


class FrozenFileSystem:
    """A mounted file system whose writes can be made to hang, until it thaws."""

    def __init__(self, folder: Path) -> None:
        need_tool("fsfreeze")
        self.folder = folder
        self._frozen = False
        # If this process dies meanwhile, its threads hang in the kernel until somebody thaws the file system.
        self._rescue = subprocess.Popen(["sh", "-c", f"sleep 50; fsfreeze --unfreeze '{folder}' 2>/dev/null"])

    def __enter__(self) -> FrozenFileSystem:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.thaw()
        self._rescue.kill()
        self._rescue.wait()

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "--freeze", str(self.folder)], check=True)
        self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            self._frozen = False
            subprocess.run(["fsfreeze", "--unfreeze", str(self.folder)], check=True)
