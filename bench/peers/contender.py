# SPDX-License-Identifier: Apache-2.0
"""What every contender is: it loads, gets its memory ready, and does one operation at a time on request.

Contenders run inside a worker process (worker.py), one process each.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import stamps
from system import clear_peak_memory, cpu_seconds, own_memory

Options = dict[str, Any]


class Skip(Exception):  # noqa: N818 - not a failure
    """This contender cannot run here; the message says why."""


@dataclass(frozen=True)
class Turn:
    """One operation on the first `size` bytes of a file, which is cold, or prepared for a write."""

    operation: str
    path: str
    size: int
    options: Options  # those of this turn only


@dataclass
class Outcome:
    """What one turn took."""

    seconds: float
    cpu_seconds: float
    requests: int = 1
    peak_bytes: int | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def as_message(self) -> dict[str, Any]:
        """As it goes to the other process."""
        return asdict(self)


@dataclass
class Call:
    """A turn, set up and ready to be timed."""

    run: Callable[[], None]
    requests: int = 1
    belongs: Callable[[int], int] = lambda piece: piece  # which piece of the file goes to a piece of memory
    facts: Callable[[], dict[str, Any]] = dict  # asked after the timed part


class Contender:
    """In this order: load (still with all privileges), prepare; then ready and run, any number of times."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def load(self) -> None:
        """Imports what is needed. Raises Skip when it is not installed."""

    def facts(self) -> dict[str, Any]:
        """Versions and settings worth keeping."""
        return {}

    def prepare(self, _size: int, _source: str) -> dict[str, Any]:
        """Gets ready for transfers of up to `size` bytes like those of the file `source`. Returns facts()."""
        return self.facts()

    def ready(self, turn: Turn) -> None:
        """Sets up what the coming turn needs and what takes long; memory is primed between this and run."""

    def run(self, turn: Turn) -> Outcome:
        """Does one operation."""
        raise NotImplementedError


class MemoryContender(Contender):
    """A contender inside the worker's own process; its data stay in its memory from turn to turn."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.view = memoryview(b"")
        self._turns = 0

    def take_memory(self, size: int) -> memoryview:
        """Memory of the kind that this contender is about, as writable bytes."""
        raise NotImplementedError

    def open(self) -> None:
        """Makes handles and the like, after the memory was filled."""

    def call(self, turn: Turn) -> Call:
        """Sets one operation up."""
        raise NotImplementedError

    def prepare(self, size: int, source: str) -> dict[str, Any]:
        self.view = self.take_memory(size)
        stamps.fill(self.view, source)
        baseline, _ = own_memory()
        self.open()
        return {**self.facts(), "baseline_bytes": baseline}

    def run(self, turn: Turn) -> Outcome:
        self._turns += 1
        call = self.call(turn)
        reads = "read" in turn.operation
        pieces = stamps.sample(turn.size, self._turns)
        if reads:
            stamps.poison(self.view, pieces)
        outcome = timed(call.run)
        outcome.requests = call.requests
        if reads:
            stamps.check_memory(self.view, pieces, call.belongs)
        else:
            stamps.check_file(self.view, turn.path, turn.size, pieces)
        outcome.details = call.facts()
        return outcome


def timed(work: Callable[[], object]) -> Outcome:
    """Runs it once under the clocks."""
    gc.collect()
    gc.disable()
    try:
        clear_peak_memory()
        cpu, start = cpu_seconds(), time.perf_counter()
        work()
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
        _, peak = own_memory()
    finally:
        gc.enable()
    return Outcome(seconds=seconds, cpu_seconds=cpu, peak_bytes=peak)
