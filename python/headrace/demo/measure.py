# SPDX-License-Identifier: Apache-2.0
"""Timing of one row: wall clock, and CPU seconds of the process and its children."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from .._measure import cpu_seconds

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
