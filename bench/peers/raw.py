#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures headrace beside fio, DeepSpeed and plain Python on one disk, in turns. See bench/README.md.

python bench/peers/raw.py FOLDER [--rounds 7] [--gib 2] [--rows read,write,...] [--out FILE.json]
python bench/peers/raw.py --render FILE.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import signal
import statistics
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import scenes
from figures import by_contender, values_of
from machine import REPOSITORY, describe
from report import FORMAT, render, verdicts
from rounds import Rounds, say
from scratch import CannotRunError, Scratch
from stamps import PIECE
from system import memory_info

ROWS = ("read", "write", "deepnvme", "small", "random", "bulk", "sweep", "idle")
SWEEP_ROUNDS = 3
SWEEP_KEPT = 4
IDLE_BYTES = 64 << 20
BUSY_LOAD = 0.5  # per CPU


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", help="on the disk to measure; a scratch folder is made in it and removed"
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="counted rounds, after one warm-up (7; an interval needs 6)"
    )
    parser.add_argument("--gib", type=float, default=2.0, help="size of the big transfers (2)")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"which of {','.join(ROWS)} (all)")
    parser.add_argument(
        "--bulk-count", type=int, default=10_000, help="requests of 64 KiB in the row bulk (10000)"
    )
    parser.add_argument("--seconds", type=int, default=5, help="length of a turn in the row random (5)")
    parser.add_argument(
        "--build", default=str(REPOSITORY / "build/release"), help="where headrace_random_read was built"
    )
    parser.add_argument("--seed", type=int, help="of the shuffling")
    parser.add_argument("--out", help="the result file; it must not exist")
    parser.add_argument(
        "--render", metavar="FILE", help="print the report of a result file, and do nothing else"
    )
    options = parser.parse_args(arguments)
    if options.render:
        return options
    if not options.folder:
        parser.error("FOLDER is missing")
    if unknown := set(options.rows.split(",")) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if (
        options.rounds < 1
        or options.bulk_count < 1
        or options.seconds < 1
        or options.gib * 2**30 < IDLE_BYTES
    ):
        parser.error(f"--rounds, --bulk-count and --seconds start at 1, --gib at {IDLE_BYTES / 2**30}")
    if options.out and os.path.exists(options.out):
        parser.error(f"{options.out} exists already")
    options.seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    return options


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what was asked for; the result as it goes into the file."""
    rows = set(options.rows.split(","))
    size = int(options.gib * 2**30) >> 20 << 20
    bulk_size = options.bulk_count * PIECE
    source_size = max(size, bulk_size if "bulk" in rows else 0)
    check_memory(size, rows)
    started, load = now(), os.getloadavg()[0]
    if load > BUSY_LOAD * (os.cpu_count() or 1):
        say(f"warning: the load average is {load:.1f}; figures from a busy machine mean little")
    with Scratch(options.folder, source_size, source_size) as scratch:
        runner = Rounds(scratch, options.rounds, options.seed, say)
        played: list[scenes.Scene] = []

        def play(scene: scenes.Scene) -> None:
            runner.run(scene)
            played.append(scene)

        if rows & {"read", "write", "deepnvme"}:
            play(scenes.main_scene(rows, size, scratch.huge_pages))
        if "small" in rows:
            play(scenes.small_scene(size // 2, scratch.huge_pages))
        if "random" in rows:
            program = os.path.join(os.path.abspath(options.build), "bench", "headrace_random_read")
            play(scenes.random_scene(source_size, scratch.huge_pages, program, options.seconds))
        if "bulk" in rows:
            play(scenes.bulk_scene(options.bulk_count, scratch.huge_pages))
        if "sweep" in rows:
            play(scenes.sweep_scene(size, None, min(SWEEP_ROUNDS, options.rounds)))
            play(scenes.sweep_scene(size, best_settings(runner), None))
        if "idle" in rows:
            play(scenes.idle_scene(IDLE_BYTES))
        return {
            "format": FORMAT,
            "command": ["bench/peers/raw.py", *sys.argv[1:]],
            "started": started,
            "ended": now(),
            "load": [load, os.getloadavg()[0]],
            "settings": {
                name: value for name, value in vars(options).items() if name not in {"out", "render", "build"}
            },
            "machine": describe(options.folder),
            "scenes": [scene_as_json(scene) for scene in played],
            "facts": runner.facts,
            "skipped": runner.skipped,
            "samples": [asdict(sample) for sample in runner.samples],
        }


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


def scene_as_json(scene: scenes.Scene) -> dict[str, Any]:
    return {
        "name": scene.name,
        "title": scene.title,
        "size": scene.size,
        "operations": scene.operations,
        "metrics": scene.metrics,
        "checks": [asdict(check) for check in scene.checks],
    }


def check_memory(size: int, rows: set[str]) -> None:
    """Contenders keep their data in memory from turn to turn."""
    holders = 3 if rows & {"read", "write", "deepnvme"} else 1
    holders += 4 if "deepnvme" in rows else 0
    need, have = holders * size + (2 << 30), memory_info()["MemAvailable"]
    if have < need:
        raise CannotRunError(
            f"{need / 1e9:.0f} GB of memory are needed and {have / 1e9:.0f} available: use a smaller --gib"
        )


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def end_on_signal(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> int:
    options = parse(sys.argv[1:])
    if options.render:
        print(render(json.loads(Path(options.render).read_text(encoding="utf-8"))), end="")
        return 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_on_signal)
    try:
        result = measure(options)
    except CannotRunError as why:
        say(f"raw.py: {why}")
        return 2
    if options.out:
        with open(options.out, "x", encoding="utf-8") as file:
            json.dump(result, file, indent=1, ensure_ascii=False)
            file.write("\n")
    print(render(result), end="")
    judged = Counter(verdict.word for verdict in verdicts(result))
    counts = ", ".join(f"{count} {word}" for word, count in judged.most_common())
    say(f"figures to reach: {counts}; skipped or failed contenders: {len(result['skipped'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
