# SPDX-License-Identifier: Apache-2.0
"""Timing of one row: wall clock, and CPU seconds of the process and its children."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from .._measure import cpu_seconds
from ..bench.memory import COLD_SHARE_MAX

Work = Callable[[], str]


class Run(NamedTuple):
    """One timed call. ``cached``: which share of the file sat in the page cache before a read, None for
    writes and where the kernel does not tell."""

    seconds: float
    cpu_seconds: float
    route: str
    cached: float | None = None


class Row(NamedTuple):
    """One line of the table: medians over the rounds; of ``cached_share`` the largest."""

    operation: str
    way: str
    size_bytes: int
    gb_per_s: float
    cpu_s_per_gb: float
    route: str
    cached_share: float | None = None


def all_cold(runs: list[Run]) -> bool:
    return all(run.cached is not None and run.cached <= COLD_SHARE_MAX for run in runs)


def timed(work: Work, cached: float | None = None) -> Run:
    """Runs the work; it returns the route that the bytes took."""
    cpu, start = cpu_seconds(), time.perf_counter()
    route = work()
    return Run(time.perf_counter() - start, cpu_seconds() - cpu, route, cached)


def row(operation: str, way: str, size_bytes: int, runs: list[Run]) -> Row:
    gigabytes = size_bytes / 1e9
    shares = [run.cached for run in runs if run.cached is not None]
    cached = max(shares, default=None)
    route = runs[-1].route
    if cached is not None and cached > COLD_SHARE_MAX:
        route += f", {cached:.0%} cached"
    return Row(
        operation,
        way,
        size_bytes,
        gigabytes / statistics.median(run.seconds for run in runs),
        statistics.median(run.cpu_seconds for run in runs) / gigabytes,
        route,
        cached,
    )
