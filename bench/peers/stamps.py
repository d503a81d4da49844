# SPDX-License-Identifier: Apache-2.0
"""Test data that proves where it belongs: random bytes, each 64 KiB piece beginning with its number."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable

PIECE = 64 << 10
SAMPLES = 256
_CHUNK = 64 << 20
_POISON = b"\xa5" * 8


class WrongDataError(RuntimeError):
    """A contender said that it was done, and the bytes are not there."""


def write_file(path: str, size: int) -> None:
    """Makes a file of `size` bytes, durable before this returns."""
    chunk = bytearray(os.urandom(min(_CHUNK, size)))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with open(fd, "wb", buffering=0) as file:
        for start in range(0, size, _CHUNK):
            length = min(_CHUNK, size - start)
            for at in range(0, length - 7, PIECE):
                chunk[at : at + 8] = _stamp((start + at) // PIECE)
            view = memoryview(chunk)[:length]
            while view:
                view = view[file.write(view) :]
        os.fsync(file.fileno())


def fill(view: memoryview, source: str, offset: int = 0) -> None:
    """Fills memory with the source file from `offset` on, and so touches every page of it."""
    with open(source, "rb", buffering=0) as file:
        file.seek(offset)
        while view:
            count = file.readinto(view)
            if not count:
                raise WrongDataError(f"{source} is shorter than the memory to fill")
            view = view[count:]


def sample(size: int, seed: int) -> list[int]:
    """Numbers of some pieces of `size` bytes, the first and the last whole one among them."""
    pieces = max(1, size // PIECE)
    return sorted({0, pieces - 1, *random.Random(seed).choices(range(pieces), k=SAMPLES)})


def poison(view: memoryview, pieces: list[int]) -> None:
    """Overwrites stamps in memory, so that only a transfer can bring them back."""
    for piece in pieces:
        view[piece * PIECE : piece * PIECE + 8] = _POISON


def check_memory(view: memoryview, pieces: list[int], belongs: Callable[[int], int]) -> None:
    """Piece i of memory must carry the stamp of piece belongs(i) of the source file."""
    for piece in pieces:
        if bytes(view[piece * PIECE : piece * PIECE + 8]) != _stamp(belongs(piece)):
            raise WrongDataError(f"the read left wrong bytes at {piece * PIECE} of the memory")


def check_file(view: memoryview, path: str, size: int, pieces: list[int]) -> None:
    """A written file must have exactly this size and carry the stamps that memory has."""
    with open(path, "rb", buffering=0) as file:
        length = os.fstat(file.fileno()).st_size
        if length != size:
            raise WrongDataError(f"the written file has {length} bytes instead of {size}")
        for at in (piece * PIECE for piece in pieces):
            if os.pread(file.fileno(), 8, at) != bytes(view[at : at + 8]):
                raise WrongDataError(f"the written file has wrong bytes at {at}")


def _stamp(piece: int) -> bytes:
    return struct.pack("<Q", piece ^ 0x68656164_72616365)
