#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How good is what `headrace tune` finds? Against the best of an exhaustive sweep, on the same disk.

Usage: bench/tune_quality.py FOLDER [--program PATH] [--rounds N] [--loops N] [--output FILE]

First `headrace tune` with its defaults. Then the exhaustive sweep: every combination of the same space,
N times in turn. Then both winners and the library's defaults take turns, so that what else uses the disk
hurts all alike; the ratio of their medians is the answer. Moves some 150 GB, of which it writes about half.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DIRECTIONS = ("read", "write")
IO_BYTES = 400 << 20
Settings = dict[str, Any]


def headrace(program: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def exhaustive_best(sweep: dict[str, Any], direction: str) -> dict[str, Any]:
    """The point with the greatest median over the loops of the first round, which has every combination."""

    def rate(point: dict[str, Any]) -> float:
        track = point[direction]
        rounds = [r for r in track["rounds"] if r["round"] == "first"] if track else []
        return statistics.median(rounds[0]["gb_per_s"]) if rounds else 0.0

    best: dict[str, Any] = max(sweep["points"], key=rate)
    return best


def once(program: str, folder: str, direction: str, settings: Settings, file: Path) -> float:
    """GB/s of one repeat after a warm-up."""
    arguments = [
        f"--engine={settings['engine']}",
        f"--block-size={settings['block_bytes']}",
        f"--queue-depth={settings['queue_depth']}",
        f"--workers={settings['workers']}",
        f"--registered={settings['registered']}",
        f"--io-size={IO_BYTES}",
        "--repeats=1",
        "--warmup-loops=1",
        "--no-fio",
    ]
    if settings["sequential_requests"]:
        arguments.append("--sequential-requests")
    if settings["single_submit"]:
        arguments.append("--single-submit")
    place = ["--file", str(file), "--flush-page-cache"] if direction == "read" else [folder, "--write"]
    result = headrace(program, "bench", "io", *place, *arguments)
    rate: float = result["results"][0]["gb_per_s"]["median"]
    return rate


def compete(
    program: str, folder: str, direction: str, contenders: dict[str, Settings], rounds: int
) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        if direction == "read":
            for _ in range(IO_BYTES >> 20):
                file.write(random.randbytes(1 << 20))
            file.flush()
        for _ in range(rounds):
            for name in random.sample(list(contenders), len(contenders)):
                rates[name].append(once(program, folder, direction, contenders[name], Path(file.name)))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--program", default="headrace")
    parser.add_argument("--rounds", type=int, default=11, help="turns of the winners")
    parser.add_argument("--loops", type=int, default=5, help="of the exhaustive sweep")
    parser.add_argument("--output", type=Path, help="a JSON file for what was measured")
    options = parser.parse_args()
    tuned = headrace(options.program, "tune", options.folder, "--no-fio")
    budget = f"{12 * options.loops}GB"
    sweep = headrace(
        options.program,
        *("tune", options.folder, "--no-fio", "--loops", str(options.loops)),
        *("--max-written", budget, "--max-read", budget, "--max-seconds", "1200"),
    )
    traffic = (tuned["read_bytes"] + tuned["written_bytes"]) / 1e9
    written = tuned["written_bytes"] / 1e9
    print(f"tune: {tuned['seconds']:.1f} s, {traffic:.1f} GB of traffic, {written:.1f} GB of it written")
    report: dict[str, Any] = {"tune": tuned, "traffic_gb": traffic}
    for direction in DIRECTIONS:
        contenders = {
            "tune": tuned["points"][tuned[direction]["point"]]["settings"],
            "exhaustive": exhaustive_best(sweep, direction)["settings"],
            "defaults": tuned["points"][0]["settings"],
        }
        rates = compete(options.program, options.folder, direction, contenders, options.rounds)
        median = {name: statistics.median(values) for name, values in rates.items()}
        print(f"{direction}: tune / exhaustive {median['tune'] / median['exhaustive']:.3f}", end="; ")
        print(f"tune / defaults {median['tune'] / median['defaults']:.3f}")
        for name, settings in contenders.items():
            shown = " ".join(
                str(settings[key]) for key in ("engine", "block_bytes", "queue_depth", "workers")
            )
            spread = f"{min(rates[name]):.2f}..{max(rates[name]):.2f}"
            print(f"  {name:<10} {median[name]:.2f} GB/s ({spread})  {shown}")
        report[direction] = {"settings": contenders, "gb_per_s": rates}
    if options.output:
        options.output.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
