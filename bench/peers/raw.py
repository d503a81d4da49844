#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures headrace beside fio, DeepSpeed and plain Python on one disk, in turns. See bench/README.md.

python bench/peers/raw.py FOLDER [--rounds 7] [--gib 2] [--rows read,write,...] [--out FILE.json]
python bench/peers/raw.py --render FILE.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from typing import Any

import raw_scenes as scenes
import session
from figures import by_contender, values_of
from machine import REPOSITORY
from rounds import Rounds
from stamps import PIECE

ROWS = ("read", "write", "deepnvme", "small", "random", "bulk", "sweep", "idle")
SWEEP_ROUNDS = 3
SWEEP_KEPT = 4
IDLE_BYTES = 64 << 20


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = session.parser_for(__doc__, ROWS)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the big transfers (2)")
    parser.add_argument(
        "--bulk-count", type=int, default=10_000, help="requests of 64 KiB in the row bulk (10000)"
    )
    parser.add_argument("--seconds", type=int, default=5, help="length of a turn in the row random (5)")
    parser.add_argument(
        "--build", default=str(REPOSITORY / "build/release"), help="where headrace_random_read was built"
    )
    options = session.parse(parser, ROWS, arguments)
    if options.bulk_count < 1 or options.seconds < 1 or options.gib * 2**30 < IDLE_BYTES:
        parser.error(f"--bulk-count and --seconds start at 1, --gib at {IDLE_BYTES / 2**30}")
    return options


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what was asked for; the result as it goes into the file."""
    rows = set(options.rows.split(","))
    size = int(options.gib * 2**30) >> 20 << 20
    bulk_size = options.bulk_count * PIECE
    source_size = max(size, bulk_size if "bulk" in rows else 0)

    def play(run: session.Session) -> None:
        huge_pages = run.scratch.huge_pages
        if rows & {"read", "write", "deepnvme"}:
            run.play(scenes.main_scene(rows, size, huge_pages))
        if "small" in rows:
            run.play(scenes.small_scene(size // 2, huge_pages))
        if "random" in rows:
            program = os.path.join(os.path.abspath(options.build), "bench", "headrace_random_read")
            run.play(scenes.random_scene(source_size, huge_pages, program, options.seconds))
        if "bulk" in rows:
            run.play(scenes.bulk_scene(options.bulk_count, huge_pages))
        if "sweep" in rows:
            run.play(scenes.sweep_scene(size, None, min(SWEEP_ROUNDS, options.rounds)))
            run.play(scenes.sweep_scene(size, best_settings(run.runner), None))
        if "idle" in rows:
            run.play(scenes.idle_scene(IDLE_BYTES))

    needs = session.Needs(memory_needed(size, rows), source_size, source_size, "--gib")
    return session.measure("raw", options, needs, play)


def best_settings(runner: Rounds) -> list[str]:
    """The settings that were fastest in either direction."""
    best: list[str] = []
    for operation in ("read", "write"):
        found = by_contender(runner.samples, "sweep-all", operation)
        medians = {
            name: statistics.median(values_of(rounds, "rate"))
            for name, rounds in found.items()
            if name != "defaults"
        }
        best += sorted(medians, key=lambda name: -medians[name])[:SWEEP_KEPT]
    return best


def memory_needed(size: int, rows: set[str]) -> int:
    """Contenders keep their data in memory from turn to turn."""
    holders = 3 if rows & {"read", "write", "deepnvme"} else 1
    holders += 4 if "deepnvme" in rows else 0
    return holders * size + (2 << 30)


if __name__ == "__main__":
    sys.exit(session.main(parse(sys.argv[1:]), measure))
