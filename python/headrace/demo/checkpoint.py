# SPDX-License-Identifier: Apache-2.0
"""The same model as a checkpoint file: saved durably and loaded cold, every tensor compared.

By headrace as safetensors, for which no framework is needed, beside plain Python; with torch and the package
safetensors installed and asked for, also in torch's container, and by these two.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace import _core

from ..bench.command import DataError
from ..bench.memory import drop_cache, prime
from . import model
from .measure import Run, timed

if TYPE_CHECKING:
    import headrace

_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip

OURS = "headrace, safetensors"
TORCH = "torch.save, torch.load"

Named = Iterator[tuple[str, memoryview]]


PIECE_BYTES = 1 << 20


def differs(one: memoryview, other: memoryview) -> bool:
    """Bytes are compared piece by piece: memoryviews would be, element by element."""
    if one.nbytes != other.nbytes:
        return True
    one, other = one.cast("B"), other.cast("B")
    return any(
        one[place : place + PIECE_BYTES].tobytes() != other[place : place + PIECE_BYTES].tobytes()
        for place in range(0, len(one), PIECE_BYTES)
    )


class Way(NamedTuple):
    """One library. ``load`` gives an object, ``bytes_of`` its tensors by name."""

    name: str
    suffix: str
    save: Callable[[Path], object]
    load: Callable[[Path], Any]
    bytes_of: Callable[[Any], Named]
    route: tuple[str, str] = ("page cache, fsync", "page cache")


class Checkpoint:
    """The tensors of a safetensors file in memory, and the ways to move them."""

    def __init__(self, handle: headrace.Handle, data: memoryview, use_peers: bool) -> None:
        _, self.tensors = model.parse(data)
        self._data = data  # ordinary memory, as tensors are in
        self._handle = handle
        self.size_bytes = sum(tensor.end - tensor.begin for tensor in self.tensors)
        self.ways = [self._headrace(), self._python()]
        if use_peers and importlib.util.find_spec("torch"):
            self.ways += self._torch()

    def measure(self, folder: Path, way: Way) -> tuple[Run, Run]:
        """One save and one load. DataError if a tensor comes back with other bytes."""
        path = folder / f"checkpoint{way.suffix}"
        path.unlink(missing_ok=True)
        os.sync()
        prime(self.size_bytes)  # the page cache's

        def save() -> str:
            way.save(path)
            return way.route[0]

        saved = timed(save)
        cached = drop_cache(path)
        loaded: list[Any] = []

        def load() -> str:
            loaded.append(way.load(path))
            return way.route[1]

        prime(2 * self.size_bytes)  # the page cache's and the tensors'
        run = timed(load, cached)
        try:
            found = dict(way.bytes_of(loaded.pop()))
        except ValueError as error:
            raise DataError(f"{way.name} gave another header than was saved: {error}") from error
        if found.keys() != {tensor.name for tensor in self.tensors}:
            raise DataError(f"{way.name} gave other tensors than were saved")
        for tensor in self.tensors:
            if differs(found[tensor.name], self._data[tensor.begin : tensor.end]):
                raise DataError(f"{way.name} gave other bytes of tensor {tensor.name}")
        path.unlink()
        return saved, run

    def _headrace(self) -> Way:
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._data))

        def save(path: Path) -> None:
            stored = [
                (t.name, _DTYPES[t.dtype], list(t.shape), start + t.begin, t.end - t.begin)
                for t in self.tensors
            ]
            _core.save_safetensors(self._handle, path, stored, [("format", "pt")], "data")

        def load(path: Path) -> Any:
            file = _core.CheckpointFile(self._handle, path)
            names = [tensor[0] for tensor in file.tensors()]
            places, memory = file.load(self._handle, [tensor[4] for tensor in file.tensors()], "auto")
            return names, places, memory

        def bytes_of(loaded: Any) -> Named:
            names, places, memory = loaded
            for name, (index, offset, nbytes) in zip(names, places, strict=True):
                yield name, memoryview(memory[index])[offset : offset + nbytes] if nbytes else memoryview(b"")

        return Way(OURS, ".safetensors", save, load, bytes_of, ("atomic, synced", "into place"))

    def _python(self) -> Way:
        def save(path: Path) -> None:
            with open(path, "wb") as file:
                file.write(self._data)
                file.flush()
                os.fsync(file.fileno())

        def load(path: Path) -> memoryview:
            with open(path, "rb") as file:
                return memoryview(file.read())

        def bytes_of(loaded: memoryview) -> Named:
            for tensor in model.parse(loaded)[1]:
                yield tensor.name, loaded[tensor.begin : tensor.end]

        return Way("plain Python, same bytes", ".python", save, load, bytes_of)

    def _torch(self) -> list[Way]:
        import torch

        import headrace

        whole = torch.frombuffer(self._data, dtype=torch.uint8)
        state = {
            t.name: whole[t.begin : t.end].clone().view(getattr(torch, _DTYPES[t.dtype])).reshape(t.shape)
            for t in self.tensors
        }

        def synced(save: Callable[[Path], object]) -> Callable[[Path], None]:
            def save_and_sync(path: Path) -> None:
                save(path)
                with open(path, "rb") as file:
                    os.fsync(file.fileno())

            return save_and_sync

        def bytes_of(loaded: dict[str, Any]) -> Named:
            for name, tensor in loaded.items():
                flat = tensor.contiguous().reshape(-1)
                yield name, memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")

        ways = [
            Way(
                "headrace, torch zip",
                ".pt",
                lambda path: headrace.save(state, path, handle=self._handle),
                lambda path: headrace.load(path, handle=self._handle),
                bytes_of,
                ("atomic, synced, CRC-32", "into place, CRC-32 compared"),
            ),
            Way(TORCH, ".pt", synced(lambda path: torch.save(state, path)), torch.load, bytes_of),
        ]
        if importlib.util.find_spec("safetensors"):
            from safetensors.torch import load_file, save_file

            ways.append(
                Way(
                    "safetensors package",
                    ".safetensors",
                    synced(lambda path: save_file(state, path)),
                    load_file,
                    bytes_of,
                    ("page cache, fsync", "mapped"),
                )
            )
        return ways


def count_ways(use_peers: bool) -> int:
    """How many ways a Checkpoint will have."""
    if not use_peers or not importlib.util.find_spec("torch"):
        return 2
    return 5 if importlib.util.find_spec("safetensors") else 4
