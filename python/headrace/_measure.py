# SPDX-License-Identifier: Apache-2.0
"""What every measurement here starts from: memory primed, caches dropped, CPU seconds, the file system."""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path

IN_MEMORY = {"tmpfs", "ramfs"}
IN_MEMORY_NOTE = """\
{} keeps its files in memory: no disk took part. The table shows how fast
memory is copied; direct I/O and a cold cache mean nothing here. To measure a
disk, name a folder on it with --folder."""


def file_system_of(folder: Path) -> str:
    """Its type, from /proc/self/mountinfo."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            fields = line.split()
            if fields[2] == wanted:
                return fields[fields.index("-") + 1]
    return "unknown"


def cpu_seconds() -> float:
    """User and system time of this process, all its threads, and the children it waited for."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def prime(size_bytes: int) -> None:
    """Touches and frees four times that much memory, half of what is free at most.

    On a virtual machine whose host takes unused memory back, whoever touches it first pays: the page cache
    of one row, the arrays of another. So it is paid here, outside of the timing.
    """
    page_bytes = 2 << 20
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    pages = min(4 * size_bytes, free_bytes // 2) // page_bytes
    if pages == 0:
        return
    with mmap.mmap(-1, pages * page_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        memory[::4096] = bytes(len(memory) // 4096)


def evict(path: Path) -> None:
    """Drops the file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def is_cold(path: Path) -> bool:
    """False when any of 64 samples of the file sits in the page cache."""
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for offset in range(0, size, max(size // 64, 1)):
            try:
                os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                continue
            except OSError:
                return True  # this file system cannot tell
            return False
        return True
    finally:
        os.close(descriptor)
