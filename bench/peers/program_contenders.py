# SPDX-License-Identifier: Apache-2.0
"""Contenders that are programs and time themselves: fio, and headrace's C++ program for random reads."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any

from contender import Contender, Outcome, Skip, Turn

FIO_DIRECTIONS = {
    "read": "read",
    "write": "write",
    "random_read": "randread",
    "bulk_read": "read",
    "bulk_random_read": "randread",
    "bulk_write": "write",
}
SECONDS_MAX = 600


class Fio(Contender):
    """Options: block, depth, fixed (registered buffers and files), seconds (none: once over the file).

    Buffers are on reserved huge pages and made before the clock starts. The time is the job's own, to a whole
    millisecond: from its first request to its last, or to the end of its fsync.
    """

    def load(self) -> None:
        if shutil.which("fio") is None:
            raise Skip("fio is not installed")
        if self.options.get("no_huge_pages"):
            raise Skip(str(self.options["no_huge_pages"]))

    def facts(self) -> dict[str, Any]:
        return {
            "version": run_program(["fio", "--version"], cwd="/").strip(),
            "command": self._command("read", "FILE", 0),
        }

    def run(self, turn: Turn) -> Outcome:
        inode = os.stat(turn.path).st_ino
        command = self._command(turn.operation, turn.path, turn.size)
        report = run_program(command, cwd=os.path.dirname(turn.path))
        if os.stat(turn.path).st_ino != inode:
            raise RuntimeError("fio made the file anew instead of writing the one that was prepared")
        job = json.loads(report[report.index("{") :])["jobs"][0]
        if job["error"]:
            raise RuntimeError(f"fio ended with error {job['error']}")
        side = job["write" if FIO_DIRECTIONS[turn.operation] == "write" else "read"]
        return Outcome(
            seconds=side["runtime"] / 1e3,
            cpu_seconds=(job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3,
            requests=side["total_ios"],
            details={"bytes": side["io_bytes"]},
        )

    def _command(self, operation: str, path: str, size: int) -> list[str]:
        direction = FIO_DIRECTIONS[operation]
        command = [
            "fio",
            "--name=headrace",
            f"--filename={path}",
            f"--rw={direction}",
            f"--size={size}",
            f"--bs={self.options['block']}",
            f"--iodepth={self.options['depth']}",
            "--ioengine=io_uring",
            "--direct=1",
            "--iomem=mmaphuge",
            "--fallocate=none",
            "--output-format=json",
        ]
        if self.options.get("fixed", True):
            command += ["--fixedbufs=1", "--registerfiles=1"]
        if seconds := self.options.get("seconds"):
            command += ["--time_based=1", f"--runtime={seconds}", "--norandommap=1", "--randrepeat=0"]
        return [*command, "--end_fsync=1" if direction == "write" else "--readonly"]


class RandomRead(Contender):
    """Options: program, block, depth (of the handle), ahead (requests handed in), workers, seconds."""

    def load(self) -> None:
        if not os.access(self.options["program"], os.X_OK):
            raise Skip(f"{self.options['program']} is not built (./dev build, or --build FOLDER)")

    def facts(self) -> dict[str, Any]:
        return {"command": ["headrace_random_read", *self._arguments("FILE")]}

    def run(self, turn: Turn) -> Outcome:
        report = json.loads(run_program([str(self.options["program"]), *self._arguments(turn.path)], cwd="/"))
        return Outcome(
            seconds=report["seconds"],
            cpu_seconds=report["cpu_seconds"],
            requests=report["requests"],
            details=report["route"] | {"bytes": report["requests"] * report["block_bytes"]},
        )

    def _arguments(self, path: str) -> list[str]:
        return [
            path,
            *(f"--{name}={self.options[name]}" for name in ("block", "depth", "ahead", "workers", "seconds")),
        ]


def run_program(command: list[str], cwd: str) -> str:
    """Its standard output; an exception with its last words when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=SECONDS_MAX, check=False)
    if done.returncode != 0:
        words = done.stderr.strip()[-500:] or fio_error(done.stdout)
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {words}")
    return done.stdout


def fio_error(report: str) -> str:
    """What fio says before its JSON, and the error of its job in there."""
    found = re.search(r'"error"\s*:\s*([1-9]\d*)', report)
    number = os.strerror(int(found[1])) if found else "no error number"
    return f"{report.partition('{')[0].strip()[-300:]} ({number})"
