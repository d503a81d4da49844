# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks beside peers share: common options, a run and its result, the report at its end."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from machine import describe
from report import format_of, render, verdicts
from rounds import Rounds, say
from scene import Scene
from scratch import CannotRunError, Scratch
from system import memory_info

BUSY_LOAD = 0.5  # per CPU
SCALE_LEAST = 0.05  # fio moves whole blocks of 4 MiB
NOT_SETTINGS = {"out", "render", "build"}


@dataclass(frozen=True)
class Needs:
    """What a run takes at most; `smaller` is the option that makes it less."""

    memory_bytes: int
    source_bytes: int
    other_bytes: int  # of files beside the source at one time
    smaller: str


class Session:
    """One run: plays scenes, and remembers which."""

    def __init__(self, scratch: Scratch, runner: Rounds) -> None:
        self.scratch = scratch
        self.runner = runner
        self.scenes: list[Scene] = []

    def play(self, scene: Scene) -> None:
        self.runner.run(scene)
        self.scenes.append(scene)


def parser_for(text: str | None, rows: Sequence[str]) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", nargs="?", help="on the disk to measure; a scratch folder is made in it and removed"
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="counted rounds, after one warm-up (7; an interval needs 6)"
    )
    parser.add_argument("--rows", default=",".join(rows), help=f"which of {','.join(rows)} (all)")
    parser.add_argument("--seed", type=int, help="of the shuffling")
    parser.add_argument("--out", help="the result file; it must not exist")
    parser.add_argument(
        "--render", metavar="FILE", help="print the report of a result file, and do nothing else"
    )
    return parser


def add_scale(parser: argparse.ArgumentParser) -> None:
    """The option of those whose rows have sizes of their own."""
    parser.add_argument("--scale", type=float, default=1.0, help="all sizes and counts times this (1)")


def parse(
    parser: argparse.ArgumentParser, rows: Sequence[str], arguments: Sequence[str]
) -> argparse.Namespace:
    """The options, those that every benchmark has checked. With --render nothing else counts."""
    options = parser.parse_args(arguments)
    if options.render:
        return options
    if not options.folder:
        parser.error("FOLDER is missing")
    if unknown := set(options.rows.split(",")) - set(rows):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if options.rounds < 1:
        parser.error("--rounds starts at 1")
    if options.out and os.path.exists(options.out):
        parser.error(f"{options.out} exists already")
    if getattr(options, "scale", SCALE_LEAST) < SCALE_LEAST:
        parser.error(f"--scale starts at {SCALE_LEAST}")
    options.seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    return options


def measure(
    kind: str, options: argparse.Namespace, needs: Needs, play: Callable[[Session], None]
) -> dict[str, Any]:
    """Runs the scenes that `play` plays; the result as it goes into the file."""
    have = memory_info()["MemAvailable"]
    if have < needs.memory_bytes:
        raise CannotRunError(
            f"{needs.memory_bytes / 1e9:.0f} GB of memory are needed and {have / 1e9:.0f} available: "
            f"use a smaller {needs.smaller}"
        )
    started, load = now(), os.getloadavg()[0]
    if load > BUSY_LOAD * (os.cpu_count() or 1):
        say(f"warning: the load average is {load:.1f}; figures from a busy machine mean little")
    with Scratch(options.folder, needs.source_bytes, needs.other_bytes, needs.smaller) as scratch:
        session = Session(scratch, Rounds(scratch, options.rounds, options.seed, say))
        play(session)
        return {
            "format": format_of(kind),
            "command": [f"bench/peers/{kind}.py", *sys.argv[1:]],
            "started": started,
            "ended": now(),
            "load": [load, os.getloadavg()[0]],
            "settings": {name: value for name, value in vars(options).items() if name not in NOT_SETTINGS},
            "machine": describe(options.folder),
            "scenes": [scene.as_json() for scene in session.scenes],
            "facts": session.runner.facts,
            "skipped": session.runner.skipped,
            "samples": [asdict(sample) for sample in session.runner.samples],
        }


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def end_on_signal(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main(options: argparse.Namespace, measured: Callable[[argparse.Namespace], dict[str, Any]]) -> int:
    """Renders a result file, or measures, keeps the result and prints the report. Returns the exit status."""
    if options.render:
        print(render(json.loads(Path(options.render).read_text(encoding="utf-8"))), end="")
        return 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_on_signal)
    try:
        result = measured(options)
    except CannotRunError as why:
        say(f"{os.path.basename(sys.argv[0])}: {why}")
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
