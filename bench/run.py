#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ./dev bench runs: our own cost (micro), then headrace beside its peers on a disk (raw and so on).

    run.py                          all four, all rows; the disk is the one that this tree is on
    run.py micro [ARGUMENTS]        headrace_micro_bench; arguments as for Google Benchmark
    run.py raw [ARGUMENTS]          bench/peers/raw.py; without a folder it works under build/
    run.py checkpoint [ARGUMENTS]   bench/peers/checkpoint.py; likewise
    run.py tools [ARGUMENTS]        bench/peers/tools.py; likewise

Results are printed and kept in bench/results, by date.
"""

from __future__ import annotations

import datetime
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
BUILD = REPOSITORY / "build" / "release"
RESULTS = REPOSITORY / "bench" / "results"
HELP = {"-h", "--help"}
BESIDE_PEERS = ("raw", "checkpoint", "tools")
# The counter of a benchmark, the most that it may be, and how it reads.
OWN_COST = (
    ("BM_RequestsOneByOne", "cpu_us_per_request", 2.0, "µs of CPU per request handed over singly"),
    ("BM_RequestsInBulkApart", "cpu_us_per_request", 2.0, "µs of CPU per request handed over in bulk"),
    ("BM_BlocksOfOneRequest", "cpu_ns_per_block", 150.0, "ns of CPU per further block"),
)


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]) or (arguments[:1] == ["micro"] and HELP & set(arguments[1:])):
        print(__doc__)
        return 0
    if arguments[:1] == ["micro"]:
        return micro(arguments[1:])
    if arguments and arguments[0] in BESIDE_PEERS:
        return beside_peers(arguments[0], arguments[1:])
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    return micro([]) or max(beside_peers(kind, []) for kind in BESIDE_PEERS)


def micro(arguments: list[str]) -> int:
    """Runs the micro-benchmarks seven times each and compares the medians with what they may cost."""
    program = str(BUILD / "bench" / "headrace_micro_bench")
    if any(word.startswith("--benchmark_out=") for word in arguments):
        return subprocess.run([program, *arguments], cwd=BUILD, check=False).returncode
    out = new_file("micro")
    command = [program, "--benchmark_repetitions=7", f"--benchmark_out={out}", "--benchmark_out_format=json"]
    done = subprocess.run([*command, *arguments], cwd=BUILD, check=False)
    if done.returncode == 0:
        print("\n".join(own_cost_table(json.loads(out.read_text(encoding="utf-8")))))
    return done.returncode


def own_cost_table(result: dict[str, Any]) -> list[str]:
    """Markdown: our own cost on the engine that moves nothing."""
    lines = ["", "| own cost | to reach | measured | |", "| --- | --- | --- | --- |"]
    for name, counter, most, words in OWN_COST:
        runs = [run for run in result["benchmarks"] if run["run_type"] == "iteration"]
        values = [run[counter] for run in runs if run["name"].startswith(name + "/")]
        if values:
            middle = statistics.median(values)
            span = f"{middle:.2f} ({min(values):.2f}..{max(values):.2f})"
            lines.append(f"| {words} | ≤ {most:g} | {span} | {'reached' if middle <= most else 'missed'} |")
    return lines


def beside_peers(kind: str, arguments: list[str]) -> int:
    """Runs the script of that name, by default in a folder of this tree, with its results kept."""
    words = list(arguments)
    if not words or words[0].startswith("-"):
        folder = REPOSITORY / "build" / "bench"
        folder.mkdir(parents=True, exist_ok=True)
        words.insert(0, str(folder))
    if not any(word in HELP or word.startswith(("--out", "--render")) for word in words):
        words += ["--out", str(new_file(kind))]
    program = str(REPOSITORY / "bench" / "peers" / f"{kind}.py")
    return subprocess.run([sys.executable, program, *words], check=False).returncode


def new_file(kind: str) -> Path:
    """A name in bench/results that no file has yet."""
    RESULTS.mkdir(exist_ok=True)
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d-%H%M")
    names = (f"{stamp}-{kind}{suffix}.json" for suffix in ("", *(f"-{n}" for n in range(2, 100))))
    return next(path for name in names if not (path := RESULTS / name).exists())


if __name__ == "__main__":
    sys.exit(main())
