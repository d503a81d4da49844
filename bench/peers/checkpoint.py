#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures saving and loading of checkpoints beside torch, safetensors and others. See bench/README.md.

python bench/peers/checkpoint.py FOLDER [--rounds 7] [--rows save-1g,load,...] [--scale 1] [--out FILE.json]
python bench/peers/checkpoint.py --render FILE.json
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import checkpoint_scenes as scenes
import session
from scene import Scene

# What each row's tensors are, as states.layout_of takes it.
TENSORS = {
    "save-1g": {"layers_bytes": 1_000_000_000},
    "save-4g": {"layers_bytes": 4_000_000_000},
    "save-100m": {"layers_bytes": 100_000_000},
    "save-many": {"many": 10_000},
    "load": {"layers_bytes": 1_000_000_000},
    "slice": {"layers_bytes": 4_000_000_000},
}
LARGE = "save-4g"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = session.parser_for(__doc__, tuple(TENSORS))
    session.add_scale(parser)
    return session.parse(parser, tuple(TENSORS), arguments)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what was asked for; the result as it goes into the file."""
    rows = [row for row in TENSORS if row in options.rows.split(",")]

    def scene(row: str, no_huge_pages: str) -> Scene:
        tensors = {name: int(value * options.scale) for name, value in TENSORS[row].items()}
        if row == "load":
            return scenes.load_scene(tensors, no_huge_pages)
        if row == "slice":
            return scenes.slice_scene(tensors)
        return scenes.save_scene(row, tensors, row != LARGE, no_huge_pages)

    def play(run: session.Session) -> None:
        for row in rows:
            run.play(scene(row, run.scratch.huge_pages))

    planned = [scene(row, "") for row in rows]
    needs = session.Needs(
        memory_bytes=max(scenes.memory_needed(one) for one in planned),
        source_bytes=max(one.size for one in planned),
        other_bytes=max(scenes.files_needed(one) for one in planned),
        smaller="--scale",
    )
    return session.measure("checkpoint", options, needs, play)


if __name__ == "__main__":
    sys.exit(session.main(parse(sys.argv[1:]), measure))
