# SPDX-License-Identifier: Apache-2.0
"""The progress bar on stderr, and the table on stdout."""

from __future__ import annotations

import json
import shutil
import sys

from .measure import Row

WIDTH = 24


class Progress:
    """Steps done of steps in all. On a terminal one line that is drawn over; else one line per step."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = 0
        self._terminal = sys.stderr.isatty()

    def step(self, what: str) -> None:
        """Says what is done now."""
        filled = WIDTH * self._done // self._steps
        line = f"[{'#' * filled}{' ' * (WIDTH - filled)}] {self._done}/{self._steps} {what}"
        self._done += 1
        if self._terminal:
            line = line[: shutil.get_terminal_size().columns - 1]
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def print_table(rows: list[Row]) -> None:
    head = ("operation", "by", "GB/s", "CPU s/GB", "route")
    lines = [(r.operation, r.way, f"{r.gb_per_s:.2f}", f"{r.cpu_s_per_gb:.3f}", r.route) for r in rows]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(4)]
    before = ""
    for line in [head, *lines]:
        if before and line[0] != before:
            print("-" * (sum(widths) + 8 + max(len(other[4]) for other in lines)))
        before = line[0]
        name, way, rate, cpu, route = line
        print(f"{name:<{widths[0]}}  {way:<{widths[1]}}  {rate:>{widths[2]}}  {cpu:>{widths[3]}}  {route}")


def print_json(rows: list[Row], facts: dict[str, object]) -> None:
    print(json.dumps({"machine": facts, "rows": [row._asdict() for row in rows]}, indent=2))
