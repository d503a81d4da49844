# SPDX-License-Identifier: Apache-2.0
"""Programs that verify, convert or inspect a checkpoint, each a process of its own for every turn; and what
people do instead in Python, inside the worker's process, whose start is not counted.

Options of all: tensors, as for states.layout_of.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from typing import Any

import states
from checkpoint_contender import CheckpointContender, give_memory_back, load_safetensors
from contender import Outcome, Skip, Turn, timed
from peer_contenders import sync_data
from stamps import WrongDataError

SECONDS_MAX = 600
PLACES = ("path", "source", "beside")


class Tool(CheckpointContender):
    """Options: command, a list in which {path}, {source} and {beside} stand for files; then, a second command
    inside the time, such as a sync; result, what it makes and what is compared: "torch", "safetensors",
    "float16" (of safetensors) or nothing; says, a text that its output must have.

    Its time is the process from start to end, its memory the most that was resident.
    """

    def load(self) -> None:
        super().load()
        program = shutil.which(self.options["command"][0])
        if program is None:
            raise Skip(f"{self.options['command'][0]} is not there (./dev build)")
        self._safetensors = load_safetensors()

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "command": self.options["command"], "then": self.options.get("then")}

    def prepare(self, size: int, source: str) -> dict[str, Any]:
        return {**super().prepare(size, source), "baseline_bytes": 0}

    def run(self, turn: Turn) -> Outcome:
        files = {name: turn.options.get(name, "") for name in PLACES} | {"path": turn.path}
        commands = [self.options["command"], *([self.options["then"]] if self.options.get("then") else [])]
        total = Outcome(seconds=0.0, cpu_seconds=0.0, peak_bytes=0)
        for command in commands:
            one, output = timed_process([word.format(**files) for word in command])
            total.seconds += one.seconds
            total.cpu_seconds += one.cpu_seconds
            total.peak_bytes = max(total.peak_bytes or 0, one.peak_bytes or 0)
            wanted = self.options.get("says", "")
            if command is commands[0] and wanted not in output:
                raise WrongDataError(f"{command[0]} did not say '{wanted}': {output[-300:]}")
        self._check(turn)
        total.details = self._bytes(turn)
        return total

    def _check(self, turn: Turn) -> None:
        kind = self.options.get("result")
        if kind == "float16":
            self._check_halves(self._safetensors.load_file(turn.path))
            return
        if kind == "safetensors":
            found = self._safetensors.load_file(turn.path)
        elif kind == "torch":
            found = self.torch.load(turn.path, mmap=True, weights_only=True)
        else:
            return
        states.check(self.torch, self.specs, found, self.source)

    def _check_halves(self, found: dict[str, Any]) -> None:
        for spec, stored in states.with_bytes(self.torch, self.specs, self.source):
            wanted = stored.clone().view(getattr(self.torch, spec.dtype)).reshape(spec.shape).half()
            if not self.torch.allclose(found[spec.name], wanted, rtol=0, atol=0, equal_nan=True):
                raise WrongDataError(f"{spec.name} was turned into other values")

    def _bytes(self, turn: Turn) -> dict[str, Any]:
        return {"bytes": 2 * turn.size} if turn.options.get("beside") else {}


class TorchTool(CheckpointContender):
    """What one writes in Python. Option: does, a method of this class."""

    def load(self) -> None:
        super().load()
        self._safetensors = load_safetensors()

    def ready(self, _turn: Turn) -> None:
        give_memory_back()

    def run(self, turn: Turn) -> Outcome:
        work = getattr(self, self.options["does"])
        outcome = timed(lambda: work(turn))
        if self.options["does"] == "convert":
            states.check(self.torch, self.specs, self._safetensors.load_file(turn.path), self.source)
        outcome.details = {"bytes": 2 * turn.size} if turn.options.get("beside") else {}
        return outcome

    def convert(self, turn: Turn) -> None:
        """torch.load, mapped, and save_file, synced."""
        state = self.torch.load(turn.options["source"], mmap=True, weights_only=True)
        self._safetensors.save_file(state, turn.path)
        sync_data(turn.path)

    def sums(self, turn: Turn) -> None:
        """zipfile's test of every record."""
        with zipfile.ZipFile(turn.path) as archive:
            if wrong := archive.testzip():
                raise WrongDataError(f"the sum of the record {wrong} is wrong")

    def against(self, turn: Turn) -> None:
        """Both mapped, and every tensor compared."""
        ours = self.torch.load(turn.path, mmap=True, weights_only=True)
        theirs = self._safetensors.load_file(turn.options["beside"])
        for name, tensor in ours.items():
            # Bytes: a NaN differs from itself.
            if not self.torch.equal(*(states.bytes_of(self.torch, one) for one in (tensor, theirs[name]))):
                raise WrongDataError(f"{name} differs")

    def names(self, turn: Turn) -> None:
        """Names and shapes by a mapped torch.load."""
        state = self.torch.load(turn.path, mmap=True, weights_only=True)
        json.dumps({name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in state.items()})


# A process starts with the peak of the one that it was forked from: a small parent measures the program.
PARENT = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, capture_output=True)
seconds = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
said = (done.stdout + done.stderr).decode(errors="replace")
figures = [seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]
print(json.dumps({"code": done.returncode, "said": said, "figures": figures}))
"""


def timed_process(command: list[str]) -> tuple[Outcome, str]:
    """Runs a program to its end. Returns what it took and what it printed."""
    parent = [sys.executable, "-I", "-S", "-c", PARENT, *command]
    answer = json.loads(subprocess.run(parent, capture_output=True, check=True, timeout=SECONDS_MAX).stdout)
    said = str(answer["said"])
    if answer["code"] != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {answer['code']}: {said[-500:]}")
    seconds, cpu, peak = answer["figures"]
    return Outcome(seconds, cpu, peak_bytes=peak), said
