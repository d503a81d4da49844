# SPDX-License-Identifier: Apache-2.0
"""What the demo moves, by headrace and by plain Python, and the proof that every byte came back."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import headrace

from .._measure import IN_MEMORY, IN_MEMORY_NOTE, file_system_of
from ..bench.command import CommandError, DataError, printable
from ..bench.memory import drop_cache, prime
from . import OPERATION, checkpoint, model, peers
from .checkpoint import PIECE_BYTES, differs
from .measure import Row, Run, Work, all_cold, row, timed
from .screen import Steps, print_result, print_table

if TYPE_CHECKING:
    from ..bench.stop import Stop

OURS = "headrace"
SECONDS_PER_GB = 3.0  # moved once, with all that is around it; on two processors of a virtual machine


class DemoError(CommandError):
    """The demo cannot go on."""


def work_place(chosen: Path | None, size_bytes: int) -> Path:
    """A folder with room, on a disk rather than in memory."""
    candidates = [chosen] if chosen else [Path("/var/tmp"), Path.cwd(), Path(tempfile.gettempdir())]
    usable = [path for path in candidates if path.is_dir() and os.access(path, os.W_OK)]
    if not usable:
        raise DemoError(f"cannot write into {candidates[0]}; choose another folder with --folder")
    parent = next((path for path in usable if file_system_of(path) not in IN_MEMORY), usable[0])
    if shutil.disk_usage(parent).free < size_bytes:
        wanted = f"{size_bytes / 1e9:.1f} GB"
        raise DemoError(f"{parent} has less than {wanted} free; choose another --folder or a smaller --size")
    return parent


def route_of(transfers: list[headrace.Transfer]) -> str:
    """A few words for the routes of many transfers: shares of the bytes, where it is not all of them."""
    routes = [transfer.route for transfer in transfers]
    known = [route for route in routes if route is not None and route.direct_bytes + route.buffered_bytes > 0]
    total = sum(route.direct_bytes + route.buffered_bytes for route in known)
    if not known or total == 0:
        return ""
    parts = [known[0].engine]
    for name in ("direct", "staged", "registered"):
        share = f"{sum(getattr(route, f'{name}_bytes') for route in known) / total:.0%}"
        if share != "0%":
            parts.append(name if share == "100%" else f"{name} {share}")
        elif name == "direct":
            parts.append("page cache")
    return ", ".join(parts)


Piece = tuple[Path, memoryview, int]


def by_headrace_write(h: headrace.Handle, pieces: list[Piece]) -> str:
    transfers = h.write_many(pieces, mode="truncate", durability="data")
    for transfer in transfers:
        transfer.result()
    return route_of(transfers)


def by_headrace_read(h: headrace.Handle, pieces: list[Piece]) -> str:
    transfers = h.read_many(pieces)
    for transfer in transfers:
        transfer.result()
    return route_of(transfers)


def by_python_write(pieces: list[Piece]) -> str:
    with open(pieces[0][0], "wb", buffering=0) as file:
        for _, memory, offset in pieces:
            file.seek(offset)
            written = 0
            while written < len(memory):
                written += file.write(memory[written:]) or 0
        os.fsync(file.fileno())
    return "page cache, fsync"


def by_python_read(pieces: list[Piece]) -> str:
    with open(pieces[0][0], "rb", buffering=0) as file:
        for _, memory, offset in pieces:
            file.seek(offset)
            done = 0
            while done < len(memory):
                count = file.readinto(memory[done:])
                if not count:
                    raise DemoError(f"{pieces[0][0]} ended early")
                done += count
    return "page cache"


def clear(memory: memoryview) -> None:
    zeros = bytes(PIECE_BYTES)
    for place in range(0, len(memory), PIECE_BYTES):
        memory[place : place + PIECE_BYTES] = zeros[: len(memory) - place]


class Case:
    """One set of pieces in one file, moved in several ways, round after round."""

    def __init__(self, what: str, path: Path, sources: list[Piece], targets: list[Piece]) -> None:
        self.what = what
        self.in_memory = file_system_of(path.parent) in IN_MEMORY
        self.path = path
        self.sources = sources
        self.targets = targets
        self.size_bytes = sum(len(memory) for _, memory, _ in sources)
        self.runs: dict[tuple[str, str], list[Run]] = {}

    def measure(
        self, operation: str, way: str, work: Work, cached: float | None = None, *, copies: int = 2
    ) -> None:
        """``copies``: how often the bytes may need memory that nobody has yet, as the page cache does."""
        prime(copies * self.size_bytes)
        self.runs.setdefault((operation, way), []).append(timed(work, cached))

    def measure_write(self, way: str, work: Work) -> None:
        self.path.unlink(missing_ok=True)
        os.sync()
        self.measure("write", way, work, copies=1)

    def measure_read(self, way: str, work: Work) -> None:
        for _, memory, _ in self.targets:
            clear(memory)
        cached = None if self.in_memory else drop_cache(self.path)
        self.measure("read", way, work, cached, copies=1)
        for (_, source, offset), (_, target, _) in zip(self.sources, self.targets, strict=True):
            if differs(source, target):
                raise DataError(
                    f"{way} read other bytes than were written, at offset {offset} of {self.path}"
                )

    def rows(self) -> list[Row]:
        """The table's lines, writes first."""
        reads = [run for (operation, _), runs in self.runs.items() for run in runs if operation == "read"]
        cold = ", cold" if all_cold(reads) else ""
        names = {"write": f"write {self.what}, durable", "read": f"read {self.what}{cold}"}
        if self.in_memory:  # there is no device to be durable on, and no cache beside the file itself
            names = {"write": f"write {self.what}", "read": f"read {self.what}"}
            for runs in self.runs.values():
                routes = [r.route.removesuffix(", fsync").replace("page cache", "memory") for r in runs]
                runs[:] = [
                    r._replace(route=route, cached=None) for r, route in zip(runs, routes, strict=True)
                ]
        order = sorted(self.runs, key=lambda key: ("write", "read").index(key[0]))
        return [
            row(names[operation], way, self.size_bytes, self.runs[operation, way]) for operation, way in order
        ]


def model_case(path: Path, data: memoryview) -> Case:
    try:
        start, tensors = model.parse(data)
    except ValueError as error:
        raise DemoError(f"the file of --model cannot be used: {error}") from None
    parts = [(0, start), *((tensor.begin, tensor.end) for tensor in tensors)]
    target = memoryview(headrace.Buffer(len(data)))
    return Case(
        f"{len(tensors)} tensors",
        path,
        [(path, data[begin:end], begin) for begin, end in parts],
        [(path, target[begin:end], begin) for begin, end in parts],
    )


def buffer_case(path: Path, data: memoryview, mebibytes: int) -> Case:
    size = mebibytes << 20
    source, target = memoryview(headrace.Buffer(size)), memoryview(headrace.Buffer(size))
    data = data[: 64 << 20]  # tensors of the model are random enough
    for place in range(0, size, len(data)):
        source[place : place + len(data)] = data[: size - place]
    what = "1 GiB" if mebibytes == 1024 else f"{mebibytes} MiB"
    return Case(what, path, [(path, source, 0)], [(path, target, 0)])


class CheckpointCase:
    """The model as a checkpoint file, saved and loaded in several ways, round after round."""

    def __init__(self, handle: headrace.Handle, data: memoryview, folder: Path, use_peers: bool) -> None:
        try:
            self._checkpoint = checkpoint.Checkpoint(handle, data, use_peers)
        except (KeyError, ValueError) as error:
            raise DemoError(f"the file of --model cannot be used: {error}") from None
        if self._checkpoint.size_bytes == 0:
            raise DemoError("the file of --model cannot be used: its tensors are empty")
        self.ways = self._checkpoint.ways
        self._folder = folder
        self._in_memory = file_system_of(folder) in IN_MEMORY
        self._runs: dict[str, list[tuple[Run, Run]]] = {}

    def warm_up(self) -> None:
        """Once without counting, by headrace."""
        for way in self.ways:
            if way.name.startswith(OURS):
                self._checkpoint.measure(self._folder, way)

    def measure(self, way: checkpoint.Way) -> None:
        """One save and one load, every tensor compared."""
        self._runs.setdefault(way.name, []).append(self._checkpoint.measure(self._folder, way))

    def rows(self) -> list[Row]:
        """The table's lines, saves first."""
        count = len(self._checkpoint.tensors)
        found = []
        cold = ", cold" if all_cold([run for runs in self._runs.values() for _, run in runs]) else ""
        for i, (what, state) in enumerate((("save", ", durable"), ("load", cold))):
            name = f"{what} {count} tensors as a checkpoint{'' if self._in_memory else state}"
            for way, runs in self._runs.items():
                picked = [pair[i] for pair in runs]
                if self._in_memory:
                    picked = [run._replace(route="memory", cached=None) for run in picked]
                found.append(row(name, way, self._checkpoint.size_bytes, picked))
        return found


def load_model(chosen: Path | None) -> tuple[str, memoryview]:
    """A name for people, and the file's bytes in ordinary memory that can be written to."""
    path = chosen or model.find_model()
    if path is None:
        return "random, in the shapes of GPT-2", model.make()
    with open(path, "rb") as file:
        data = memoryview(bytearray(os.fstat(file.fileno()).st_size))
        place = 0
        while place < len(data) and (count := file.readinto(data[place:])):
            place += count
        return path.name, data[:place]


def tell_plan(options: argparse.Namespace, name: str, data: memoryview, place: Path, ways: int) -> None:
    """What will be done, and how long it may take, before it is."""
    buffer_bytes = options.size << 20
    moved_gb = options.rounds * ((4 + 2 * ways) * len(data) + 4 * buffer_bytes) / 1e9
    seconds = max(5, round(SECONDS_PER_GB * moved_gb / 5) * 5)
    for line in (
        f"the model: {name}, {len(data) / 1e6:.0f} MB; the buffer: {buffer_bytes / 1e6:.0f} MB",
        f"{moved_gb:.1f} GB will be written and read in {place}, in {options.rounds} rounds: about "
        f"{seconds} s on two processors and an NVMe disk"
        + (", and what the peers take" if options.peers else ""),
    ):
        print(f"headrace: {OPERATION}: {printable(line)}", file=sys.stderr, flush=True)


def run(options: argparse.Namespace, stop: Stop) -> None:
    """Moves, compares, prints."""
    name, data = load_model(options.model)
    others = peers.installed() if options.peers else []
    ways = checkpoint.count_ways(options.peers)
    place = work_place(options.folder, 2 * ((options.size << 20) + len(data)))
    tell_plan(options, name, data, place, ways)
    with (
        Steps(2 + options.rounds * (8 + ways + len(others))) as progress,
        stop.folder(place, "headrace-demo-") as folder,
        headrace.Handle(engine=options.engine) as h,
    ):
        progress.step(f"fill a buffer of {options.size} MiB")
        cases = [model_case(folder / "model", data), buffer_case(folder / "buffer", data, options.size)]
        saved = CheckpointCase(h, data, folder, options.peers)
        progress.step("once without counting: staging memory is taken at first use")
        for case in cases:
            by_headrace_write(h, case.sources)
            case.path.unlink()
        saved.warm_up()
        for number in range(options.rounds):
            for case in cases:
                label = f"round {number + 1}: {case.what}"
                progress.step(f"{label}, write by headrace")
                case.measure_write(OURS, lambda case=case: by_headrace_write(h, case.sources))  # type: ignore[misc]
                progress.step(f"{label}, read by headrace")
                case.measure_read(OURS, lambda case=case: by_headrace_read(h, case.targets))  # type: ignore[misc]
                progress.step(f"{label}, write by plain Python")
                case.measure_write("plain Python", lambda case=case: by_python_write(case.sources))  # type: ignore[misc]
                progress.step(f"{label}, read by plain Python")
                case.measure_read("plain Python", lambda case=case: by_python_read(case.targets))  # type: ignore[misc]
            for way in saved.ways:
                progress.step(f"round {number + 1}: checkpoint by {way.name}")
                saved.measure(way)
            for peer in others:
                progress.step(f"round {number + 1}: {cases[-1].what} by {peer.name}")
                peer.measure(cases[-1], folder)
        facts = {
            "kernel": platform.release(),
            "processors": os.cpu_count(),
            "file system": file_system_of(folder),
            "model": name,
            "headrace": headrace.__version__,
            **h.facts(),
        }
    rows = saved.rows() + [row for case in cases for row in case.rows()]
    if options.json:
        print_result(rows, facts)
        return
    print_table(rows)
    where = str(facts["file system"])
    rounds = "1 round" if options.rounds == 1 else f"{options.rounds} rounds"
    print(f"Every byte read is the one that was written. Medians of {rounds}, {where}.")
    if where in IN_MEMORY:
        print(IN_MEMORY_NOTE.format(where))
    for peer in others:
        for note in peer.notes:
            print(f"{peer.name}: {printable(note)}")
