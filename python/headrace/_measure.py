# SPDX-License-Identifier: Apache-2.0
"""What every measurement here starts from: caches dropped, CPU seconds, the file system."""

from __future__ import annotations

import os
import resource
from pathlib import Path

IN_MEMORY = {"tmpfs", "ramfs"}
IN_MEMORY_NOTE = """\
{} keeps its files in memory: no disk took part. The table shows how fast
memory is copied; direct I/O and a cold cache mean nothing here. To measure a
disk, name a folder on it with --folder."""


def file_system_of(folder: Path) -> str:
    """Its type, from /proc/self/mountinfo; "unknown" where that does not tell."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            for line in table:
                fields = line.split()
                if fields[2] == wanted:
                    return fields[fields.index("-") + 1]
    except OSError:
        pass
    return "unknown"


def cpu_seconds() -> float:
    """User and system time of this process, all its threads, and the children it waited for."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def evict(path: Path) -> None:
    """Drops the file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
