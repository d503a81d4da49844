# SPDX-License-Identifier: Apache-2.0
"""What a measurement asks of Linux: cold caches, primed memory, CPU time, peak memory, preallocated files."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import shutil
from pathlib import Path

PAGE = mmap.PAGESIZE
RESIDENT_MAX = 0.01
PRIME_LEAST = 512 << 20
PIECE_READ = 4 << 20
_CACHESTAT = 451  # the same number on every architecture that has it (Linux 6.5)
_MADV_POPULATE_WRITE = 23
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class CacheError(RuntimeError):
    """A file that should have left the page cache is still in it, or the other way round."""


def evict(path: str) -> float:
    """Drops a file from the page cache. Returns the share that stayed; above 1 % raises CacheError."""
    share = 1.0
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(5):
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            share = resident_share(fd)
            if share <= RESIDENT_MAX:
                return share
    finally:
        os.close(fd)
    raise CacheError(f"{share:.1%} of {path} stays in the page cache; is another process using it?")


def warm(path: str) -> None:
    """Reads a file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        piece = bytearray(PIECE_READ)
        while file.readinto(piece):
            pass


def warm_share(path: str) -> float:
    """How much of a file that was read before still sits in the page cache; below 99 % raises CacheError."""
    with open(path, "rb") as file:
        share = resident_share(file.fileno())
    if share < 1 - RESIDENT_MAX:
        raise CacheError(f"only {share:.1%} of {path} stays in the page cache; is there too little memory?")
    return share


def resident_share(fd: int) -> float:
    """How much of a file sits in the page cache: by cachestat, on kernels before 6.5 by mincore."""
    size = os.fstat(fd).st_size
    if size == 0:
        return 0.0
    pages = (size + PAGE - 1) // PAGE
    whole = (ctypes.c_uint64 * 2)(0, 0)  # offset, length; a zero length reaches to the end
    counts = (ctypes.c_uint64 * 5)()  # cached, dirty, under writeback, evicted, recently evicted
    if _libc.syscall(_CACHESTAT, fd, ctypes.byref(whole), ctypes.byref(counts), 0) == 0:
        return int(counts[0]) / pages
    with mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE) as mapping:
        present = (ctypes.c_ubyte * pages)()
        held = (ctypes.c_char * size).from_buffer(mapping)
        failed = _libc.mincore(ctypes.c_void_p(ctypes.addressof(held)), ctypes.c_size_t(size), present)
        del held
        if failed:
            raise OSError(ctypes.get_errno(), "mincore failed")
        return sum(flags & 1 for flags in bytes(present)) / pages


def prime(new_bytes: int) -> int:
    """Touches and frees four times the memory that the coming call takes anew, 512 MiB at least.

    A virtual machine may have given free memory back to its host, and the first touch of such memory is slow
    whatever the library. What goes back is free blocks of 2 MiB and more, so these are what is touched: after
    priming by small pages, large page cache folios were still ten times dearer. Bounded by 70 % of the memory
    available. Returns the bytes touched.
    """
    wanted = max(PRIME_LEAST, 4 * new_bytes)
    wanted = min(wanted, int(memory_info()["MemAvailable"] * 0.7)) // PAGE * PAGE
    with mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        try:
            memory.madvise(_MADV_POPULATE_WRITE)
        except OSError:  # before Linux 5.14
            for at in range(0, wanted, PAGE):
                memory[at] = 1
    return wanted


def memory_info() -> dict[str, int]:
    """/proc/meminfo: sizes in bytes, huge page counts as they are."""
    info = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, rest = line.split(":")
        fields = rest.split()
        info[name] = int(fields[0]) * (1024 if len(fields) > 1 else 1)
    return info


def clear_peak_memory() -> None:
    """From now on VmHWM of this process counts from its present size."""
    Path("/proc/self/clear_refs").write_text("5")


def own_memory() -> tuple[int, int]:
    """Resident bytes of this process: now, and at most since the last clear_peak_memory()."""
    values = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(values["VmRSS"].split()[0]) * 1024, int(values["VmHWM"].split()[0]) * 1024


def cpu_seconds() -> float:
    """User and system time of this process with all its threads, and of its children that ended."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def other_threads_cpu_seconds() -> float:
    """Time that threads other than the first one of this process have run."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        if task.name != str(os.getpid()):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def preallocate(path: str, size: int, owner: int) -> None:
    """A new file of `size` bytes with its blocks reserved, durable, belonging to `owner`."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if os.fstat(fd).st_uid != owner:
            os.fchown(fd, owner, -1)
        os.posix_fallocate(fd, 0, size)
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Makes names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_if_there(path: str) -> None:
    """Removes a file or a folder and waits until that is on disk, so that no later turn pays for it."""
    if os.path.lexists(path):
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        sync_folder(os.path.dirname(path))
        os.sync()


def become_ordinary(uid: int | None, locked_bytes: int) -> None:
    """Limits the locked memory of this process, and with `uid` (needs root) makes it that user's."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (locked_bytes, locked_bytes))
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # keep /proc/self/clear_refs our own
    end_with_parent()


def end_with_parent() -> None:
    """The kernel kills this process when the one that started it dies, however that dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
