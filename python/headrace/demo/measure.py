# SPDX-License-Identifier: Apache-2.0
"""Timing: wall clock, CPU seconds of the process and its children, caches dropped, memory primed."""

from __future__ import annotations

import mmap
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Work = Callable[[], str]


class Run(NamedTuple):
    """One timed call."""

    seconds: float
    cpu_seconds: float
    route: str


class Row(NamedTuple):
    """One line of the table: medians over the rounds."""

    operation: str
    way: str
    size_bytes: int
    gb_per_s: float
    cpu_s_per_gb: float
    route: str


def cpu_seconds() -> float:
    """User and system time of this process, all its threads, and the children it waited for."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def timed(work: Work) -> Run:
    """Runs the work; it returns the route that the bytes took."""
    cpu, start = cpu_seconds(), time.perf_counter()
    route = work()
    return Run(time.perf_counter() - start, cpu_seconds() - cpu, route)


def row(operation: str, way: str, size_bytes: int, runs: list[Run]) -> Row:
    gigabytes = size_bytes / 1e9
    return Row(
        operation,
        way,
        size_bytes,
        gigabytes / statistics.median(run.seconds for run in runs),
        statistics.median(run.cpu_seconds for run in runs) / gigabytes,
        runs[-1].route,
    )


def prime(size_bytes: int) -> None:
    """Touches and frees four times that much memory, half of what is free at most.

    On a virtual machine whose host takes unused memory back, whoever touches it first pays: the page cache
    of one row, the
    arrays of another. So it is paid here, outside of the timing.
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
