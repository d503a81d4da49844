# SPDX-License-Identifier: Apache-2.0
"""Runs a scene: every round gives each contender one turn per operation, in an order shuffled anew.

A turn, in this order: the contender made ready; the file evicted or read into the page cache, and that
checked, or the target made and preallocated; memory primed; the timed call, in the contender's own process;
the bytes checked; the target removed and that made durable.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from contender import Skip
from figures import METRICS, Sample, value_of
from scene import ORDINARY_LOCKED_BYTES, Entry, Scene
from scratch import Scratch
from system import CacheError, evict, preallocate, prime, remove_if_there, warm, warm_share
from worker_process import ContenderError, WorkerProcess

WRITES = {"write", "bulk_write"}  # into a preallocated file
MAKES = {"replace", "save"}  # a file of its own
CONVERTS = {"convert"}  # a file of its own, out of the cold one that the turn's option "source" names
WARM = {"load_warm", "map_warm"}  # from the page cache; whatever else reads does so from the disk
FAILURES_MAX = 2
ORDINARY_UID = 65534  # "nobody" on every common distribution


class Rounds:
    """Runs scenes one after another and gathers their samples, facts and what was skipped."""

    def __init__(self, scratch: Scratch, rounds: int, seed: int, say: Callable[[str], None]) -> None:
        self.samples: list[Sample] = []
        self.facts: dict[str, dict[str, Any]] = {}
        self.skipped: list[dict[str, str]] = []
        self._failures: Counter[tuple[str, str]] = Counter()
        self._scratch = scratch
        self._rounds = rounds
        self._random = random.Random(seed)
        self._say = say

    def run(self, scene: Scene) -> None:
        """Adds the scene's samples. Failures are kept; after the second a contender is left out."""
        count = scene.rounds or self._rounds
        self._say(f"== {scene.name}: {scene.title}, {count} rounds")
        self._make_files(scene)
        with self._workers(scene) as workers:
            for number in range(count + 1):
                operations = self._random.sample(scene.operations, len(scene.operations))
                for operation in operations:
                    for entry in self._random.sample(scene.entries, len(scene.entries)):
                        takes_part = not entry.operations or operation in entry.operations
                        if takes_part and entry.name in workers:
                            self._turn(scene, entry, operation, number, workers)
        for entry in scene.files:
            remove_if_there(self._scratch.file(entry.source))

    def _make_files(self, scene: Scene) -> None:
        """Each by a process that then ends: nothing of it may be in the memory of those that read it."""
        for entry in scene.files:
            worker = self._start(scene, entry)
            if worker is None:
                continue
            path = self._scratch.file(entry.source)
            turn = {"operation": "save", "path": path, "size": scene.size, "options": entry.turn}
            try:
                worker.ask({"do": "ready", **turn})
                worker.ask({"do": "run", **turn})
            except (Skip, ContenderError) as why:
                remove_if_there(path)
                self._skip(scene, entry, why)
            finally:
                worker.close()

    @contextmanager
    def _workers(self, scene: Scene) -> Iterator[dict[str, WorkerProcess]]:
        """Ready workers by contender; those that cannot run are told and left out."""
        by_process: dict[str, WorkerProcess | None] = {}
        workers: dict[str, WorkerProcess] = {}
        try:
            for entry in scene.entries:
                missing = [
                    name
                    for name in (entry.source, entry.beside)
                    if name and not os.path.exists(self._scratch.file(name))
                ]
                if missing:
                    self._skip(scene, entry, Skip(f"{missing[0]}, which it reads, was not made"))
                    continue
                key = entry.process or entry.name
                if key not in by_process:
                    by_process[key] = self._start(scene, entry)
                worker = by_process[key]
                if worker is not None:
                    workers[entry.name] = worker
            yield workers
        finally:
            for ended in {
                id(worker): worker for worker in (*by_process.values(), *workers.values()) if worker
            }.values():
                ended.close()

    def _start(self, scene: Scene, entry: Entry) -> WorkerProcess | None:
        self._say(f"   starting: {entry.name}")
        root = os.geteuid() == 0
        worker = WorkerProcess(
            {
                "kind": entry.kind,
                "options": entry.options,
                "uid": ORDINARY_UID if root and entry.ordinary_user else None,
                "locked_bytes": ORDINARY_LOCKED_BYTES if entry.ordinary_user else None,
            }
        )
        try:
            answer = worker.ask({"do": "prepare", "size": scene.size, "source": self._scratch.source})
        except (Skip, ContenderError) as why:
            worker.close()
            self._skip(scene, entry, why)
            return None
        except BaseException:
            worker.close()
            raise
        self.facts.setdefault(scene.name, {})[entry.process or entry.name] = answer["facts"]
        return worker

    def _turn(
        self, scene: Scene, entry: Entry, operation: str, number: int, workers: dict[str, WorkerProcess]
    ) -> None:
        if entry.fresh:
            workers[entry.name].close()
            fresh = self._start(scene, entry)
            if fresh is None:
                del workers[entry.name]
                return
            workers[entry.name] = fresh
        try:
            sample = self._timed(scene, entry, operation, number, workers[entry.name])
        except (Skip, ContenderError, CacheError) as why:
            self._skip(scene, entry, why)
            self._failures[scene.name, entry.name] += 1
            if not workers[entry.name].alive or self._failures[scene.name, entry.name] >= FAILURES_MAX:
                del workers[entry.name]
            return
        self.samples.append(sample)
        figures = ", ".join(
            f"{value:.{METRICS[name].digits}f} {METRICS[name].unit}"
            for name in scene.metrics
            if (value := value_of(sample, name)) is not None
        )
        label = f"round {number}" if number else "warm-up"
        self._say(f"   {label:8} {operation:16} {entry.name:54} {figures}")

    def _timed(
        self, scene: Scene, entry: Entry, operation: str, number: int, worker: WorkerProcess
    ) -> Sample:
        owner = ORDINARY_UID if entry.ordinary_user and os.geteuid() == 0 else os.geteuid()
        target = os.path.join(self._scratch.folder_for(f"user-{owner}", owner), "target.bin")
        doing = entry.does.get(operation, operation)
        writes = doing in WRITES or doing in MAKES or doing in CONVERTS
        source = self._scratch.file(entry.source)
        path = target if writes else source
        options = dict(entry.turn)
        if doing in CONVERTS:
            options["source"] = source
        if entry.beside:
            options["beside"] = self._scratch.file(entry.beside)
        turn = {"operation": doing, "path": path, "size": scene.size, "options": options}
        details: dict[str, Any] = {}
        try:
            worker.ask({"do": "ready", **turn})
            if doing in WRITES:
                preallocate(target, scene.size, owner)
            elif doing in WARM:
                warm(path)
            elif not writes or doing in CONVERTS:
                details["resident_before"] = evict(source)
            if entry.beside:
                details["resident_before_beside"] = evict(options["beside"])
            details["primed_bytes"] = prime(int(scene.size * entry.new_share))
            if doing in WARM:
                details["resident_before"] = warm_share(path)  # priming may have pushed it out
            load = os.getloadavg()[0]
            answer = worker.ask({"do": "run", **turn})
        finally:
            if writes:
                remove_if_there(target)
        details |= answer["details"]
        facts = self.facts[scene.name][entry.process or entry.name]
        return Sample(
            scene=scene.name,
            operation=operation,
            contender=entry.name,
            round=number,
            bytes=int(details.pop("bytes", scene.size)),
            requests=answer["requests"],
            seconds=answer["seconds"],
            cpu_seconds=answer["cpu_seconds"],
            peak_bytes=answer["peak_bytes"],
            baseline_bytes=facts.get("baseline_bytes"),
            load=load,
            details=details,
        )

    def _skip(self, scene: Scene, entry: Entry, why: Exception) -> None:
        kind = "skipped" if isinstance(why, Skip) else "failed"
        self.skipped.append({"scene": scene.name, "contender": entry.name, "kind": kind, "reason": str(why)})
        self._say(f"   {kind}: {entry.name}: {why}")


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)
