# SPDX-License-Identifier: Apache-2.0
"""headrace by its own Python API: a Buffer or an ordinary torch tensor, singly or in bulk; its handles."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import stamps
from contender import Call, Contender, MemoryContender, Options, Outcome, Skip, Turn, timed
from system import cpu_seconds, other_threads_cpu_seconds

IDLE_SECONDS = 5.0
FIRST_BYTES = 4096


def load_headrace() -> Any:
    """The module headrace."""
    try:
        import headrace
    except ImportError as error:
        raise Skip(f"headrace cannot be imported: {error}") from error
    return headrace


def load_torch() -> Any:
    """The module torch."""
    try:
        import torch
    except ImportError as error:
        raise Skip(f"torch cannot be imported: {error}") from error
    return torch


class Headrace(MemoryContender):
    """Options: memory, "buffer" (default) or "tensor". Of a turn: handle, the arguments of Handle()."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._handles: dict[str, Any] = {}
        self._memory: Any = None
        self._tensor = options.get("memory") == "tensor"

    def load(self) -> None:
        self._headrace = load_headrace()
        if self._tensor:
            self._torch = load_torch()

    def take_memory(self, size: int) -> memoryview:
        if self._tensor:
            self._memory = self._torch.empty(size, dtype=self._torch.uint8)
            return memoryview(self._memory.numpy())
        self._memory = self._headrace.Buffer(size)
        return memoryview(self._memory)

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"version": self._headrace.__version__, "handle": self._handle({}).facts()}
        if self._tensor:
            pointer = self._memory.data_ptr()
            return facts | {"torch": self._torch.__version__, "pointer_modulo_4096": pointer % 4096}
        return facts | {"locked": self._memory.locked, "huge_bytes": self._memory.huge_bytes}

    def call(self, turn: Turn) -> Call:
        handle = self._handle(turn.options.get("handle", {}))
        if turn.operation.startswith("bulk"):
            return self._bulk(handle, turn)
        memory = self._memory if turn.size == self.view.nbytes else self._memory[: turn.size]
        transfers: list[Any] = []

        def read() -> None:
            transfers.append(handle.read(turn.path, memory))
            transfers[0].result()

        def write() -> None:
            transfers.append(handle.write(turn.path, memory, mode="update", durability="data"))
            transfers[0].result()

        def replace() -> None:
            transfers.append(handle.write(turn.path, memory, mode="replace"))
            transfers[0].result()

        work = {"read": read, "write": write, "replace": replace}[turn.operation]
        return Call(work, facts=facts_of(handle, transfers))

    def _handle(self, arguments: dict[str, Any]) -> Any:
        key = json.dumps(arguments, sort_keys=True)
        if key not in self._handles:
            self._handles[key] = self._headrace.Handle(**arguments)
        return self._handles[key]

    def _bulk(self, handle: Any, turn: Turn) -> Call:
        """One call of many requests, 64 KiB each, that together cover the file once."""
        piece, count = stamps.PIECE, turn.size // stamps.PIECE
        order = list(range(count))
        if turn.operation == "bulk_random_read":
            random.Random(count).shuffle(order)
        items = [(turn.path, self.view[i * piece : (i + 1) * piece], order[i] * piece) for i in range(count)]
        transfers: list[Any] = []

        def read() -> None:
            transfers.extend(handle.read_many(items))
            for transfer in transfers:
                transfer.result()

        def write() -> None:
            transfers.extend(handle.write_many(items, durability="data"))
            for transfer in transfers:
                transfer.result()

        return Call(
            write if turn.operation == "bulk_write" else read,
            requests=count,
            belongs=lambda piece: order[piece],
            facts=facts_of(handle, transfers),
        )


class HeadraceHandle(Contender):
    """What a handle costs: making it, its first 4 KiB, and five idle seconds. A fresh process each time."""

    def load(self) -> None:
        self._headrace = load_headrace()

    def facts(self) -> dict[str, Any]:
        return {"version": self._headrace.__version__}

    def run(self, turn: Turn) -> Outcome:
        handles: list[Any] = []
        if turn.operation == "create":
            outcome = timed(lambda: handles.append(self._headrace.Handle()))
            handles[0].close()
            return outcome
        with self._headrace.Handle() as handle:
            target = bytearray(FIRST_BYTES)
            if turn.operation == "first":
                return timed(lambda: handle.read(turn.path, target).result())
            handle.read(turn.path, self._headrace.Buffer(turn.size)).result()
            time.sleep(0.1)
            threads, cpu = other_threads_cpu_seconds(), cpu_seconds()
            time.sleep(IDLE_SECONDS)
            # What Python's own sleeping thread takes is not headrace's.
            whole = cpu_seconds() - cpu
            threads = other_threads_cpu_seconds() - threads
            return Outcome(IDLE_SECONDS, threads, details={"process_cpu_seconds": whole})


def facts_of(handle: Any, transfers: list[Any]) -> Callable[[], dict[str, Any]]:
    """Asks, after the timed part, which way the bytes went and in how many blocks."""
    before = blocks_of(handle)

    def ask() -> dict[str, Any]:
        names = (
            "engine",
            "direct_bytes",
            "buffered_bytes",
            "staged_bytes",
            "registered_bytes",
            "pages",
            "why",
        )
        route = {name: getattr(transfers[0].route, name) for name in names}
        return {"route_of_first": route, "blocks": blocks_of(handle) - before}

    return ask


def blocks_of(handle: Any) -> int:
    """System-level transfers of a handle so far."""
    stats = handle.stats()
    return int(stats["reads"]["blocks"]) + int(stats["writes"]["blocks"])
