# SPDX-License-Identifier: Apache-2.0
"""The progress bar on stderr, and the table on stdout."""

from __future__ import annotations

import textwrap
import time

from ..bench.command import Progress, print_json
from .measure import Row

WIDTH = 24
COLUMNS = 80  # of the table
BAR = 10


class Steps(Progress):
    """Steps done of steps in all, with a bar."""

    def __init__(self, steps: int) -> None:
        super().__init__("")
        self._steps = steps
        self._done = 0
        self._begin_s = time.monotonic()

    def step(self, what: str) -> None:
        """Says what is done now."""
        filled = WIDTH * self._done // self._steps
        left = ""
        if self._done > self._steps // 4:
            took_s = time.monotonic() - self._begin_s
            left = f", about {took_s / self._done * (self._steps - self._done):.0f} s left"
        self._show(f"[{'#' * filled}{' ' * (WIDTH - filled)}] {self._done}/{self._steps}{left}: {what}")
        self._done += 1


def print_table(rows: list[Row]) -> None:
    """One block of lines per operation, each with a bar for its rate, no line longer than 80 characters."""
    ways = max(len(row.way) for row in rows) + 2
    head = f"{'':{ways}}  {'GB/s':>6}  {'':{BAR}}  {'CPU s/GB':>8}  "
    print(f"{head}route")
    fastest: dict[str, float] = {}
    for row in rows:
        fastest[row.operation] = max(fastest.get(row.operation, 0.0), row.gb_per_s)
    operation = ""
    for row in rows:
        if row.operation != operation:
            operation = row.operation
            print(operation)
        first, *more = textwrap.wrap(row.route, COLUMNS - len(head)) or [""]
        bar = "#" * round(BAR * row.gb_per_s / fastest[operation])
        figures = f"{row.gb_per_s:>6.2f}  {bar:{BAR}}  {row.cpu_s_per_gb:>8.3f}"
        print(f"  {row.way:{ways - 2}}  {figures}  {first}".rstrip())
        for line in more:
            print(" " * len(head) + line)


def print_result(rows: list[Row], facts: dict[str, object]) -> None:
    """As JSON."""
    head: dict[str, object] = {"schema": "headrace.demo", "version": 1}
    print_json(head | {"machine": facts, "rows": [row._asdict() for row in rows]})
