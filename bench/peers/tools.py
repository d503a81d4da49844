#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures headrace verify, convert and inspect beside fio, bare loops and Python. See bench/README.md.

python bench/peers/tools.py FOLDER [--rounds 7] [--rows verify,convert,...] [--scale 1] [--out FILE.json]
python bench/peers/tools.py --render FILE.json
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import session
import tools_scenes as scenes
from machine import REPOSITORY
from scene import Scene

TENSORS = {
    "verify": {"layers_bytes": 4_000_000_000},
    "convert": {"layers_bytes": 1_000_000_000},
    "inspect": {"layers_bytes": 4_000_000_000},
}
SIZES_IN_MEMORY = 4  # of the largest row: the tensors of one contender, and page cache


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = session.parser_for(__doc__, tuple(TENSORS))
    session.add_scale(parser)
    parser.add_argument(
        "--build", default=str(REPOSITORY / "build/release"), help="where the programs were built"
    )
    return session.parse(parser, tuple(TENSORS), arguments)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what was asked for; the result as it goes into the file."""
    rows = [row for row in TENSORS if row in options.rows.split(",")]
    build = os.path.abspath(options.build)
    program = os.path.join(build, "tools", "cli", "headrace")
    copy_loop = os.path.join(build, "bench", "headrace_copy_loop")

    def scene(row: str, no_huge_pages: str) -> Scene:
        tensors = {name: int(value * options.scale) for name, value in TENSORS[row].items()}
        if row == "verify":
            return scenes.verify_scene(tensors, program, no_huge_pages)
        if row == "convert":
            return scenes.convert_scene(tensors, program, copy_loop)
        return scenes.inspect_scene(tensors, program)

    def play(run: session.Session) -> None:
        for row in rows:
            run.play(scene(row, run.scratch.huge_pages))

    largest = max(scene(row, "").size for row in rows)
    needs = session.Needs(
        memory_bytes=SIZES_IN_MEMORY * largest,
        source_bytes=largest,
        other_bytes=3 * largest,
        smaller="--scale",
    )
    return session.measure("tools", options, needs, play)


if __name__ == "__main__":
    sys.exit(session.main(parse(sys.argv[1:]), measure))
