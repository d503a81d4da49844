# SPDX-License-Identifier: Apache-2.0
"""torch tensors over headrace's memory, and file objects for torch.save and torch.load. Importing this module
imports torch."""

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING, SupportsIndex

import torch

from ._core import Buffer
from ._stream import BufferedStreamReader, StreamReader, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._core import Handle
    from ._types import Durability, Pages, Path

__all__ = ["empty", "writer", "reader"]

# As much as a device needs to be busy with one read; what is larger goes straight into the tensor.
_READ_AHEAD_BYTES = 4 << 20


def empty(
    *size: SupportsIndex | Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    pages: Pages = "transparent",
    lock: bool = True,
) -> torch.Tensor:
    """A CPU tensor of this size and dtype over a headrace.Buffer, freed when its last view dies.

    ``size`` and ``dtype`` as in torch.empty: numbers or one sequence; torch's default dtype when none is
    given. The values are zeros at first. ``device`` may be the CPU only: GPU memory is not supported yet, and
    raises ValueError. ``pages`` and ``lock`` as in headrace.Buffer. Raises MemoryError when the memory is not
    to be had.
    """
    if device is not None and torch.device(device).type != "cpu":
        raise ValueError(
            f"headrace.torch.empty makes CPU tensors, not one on '{device}': GPU memory is not supported"
            f" yet. Leave device out, read into the CPU tensor, and move that with .to('{device}')"
        )
    shape: tuple[int, ...]
    if len(size) == 1 and not isinstance(size[0], SupportsIndex):
        shape = tuple(index(n) for n in size[0])
    else:
        shape = tuple(index(n) for n in size)  # type: ignore[arg-type]
    if any(n < 0 for n in shape):
        raise ValueError(f"a tensor cannot have the negative size {shape}")
    kind = torch.get_default_dtype() if dtype is None else dtype
    count = math.prod(shape)
    if count * kind.itemsize >= 1 << 63:
        raise MemoryError(f"no memory holds {count} elements of {kind}")
    buffer = Buffer(count * kind.itemsize, pages=pages, lock=lock)
    return torch.from_dlpack(buffer).view(kind).view(shape)


def writer(path: Path, *, durability: Durability = "data", handle: Handle | None = None) -> StreamWriter:
    """A file object for an unmodified ``torch.save(obj, file)``. The file appears whole, or not at all.

        with headrace.torch.writer("model.pt") as file:
            torch.save(model.state_dict(), file)

    Leaving the ``with`` block, or close(), waits for the bytes, syncs, and renames the file to ``path``; an
    exception in the block removes what was written and leaves the old file. So does close() while an
    exception is being handled, which goes on, and dropping the file without close(), with a ResourceWarning.
    Writes are sequential, of one thread at a time; they are copied into 64 MiB of memory and written while
    more comes. headrace.save needs no such copy and is faster. ``durability`` and ``handle`` as there.

    Raises TransferError (an OSError) from the call that meets the failure, at the latest from close().
    """
    return StreamWriter(path, durability, handle)


def reader(path: Path, *, handle: Handle | None = None) -> BufferedStreamReader:
    """A file object for an unmodified ``torch.load(file)``; larger tensors are read straight into place.

        with headrace.torch.reader("model.pt") as file:
            state = torch.load(file)

    torch compares no sums and reads one tensor after another; headrace.load does both better. Any other
    reader of binary files can use it: seek, tell, read and readinto work as those of open(path, "rb").
    Raises TransferError (an OSError; FileNotFoundError and so on are among its subclasses).
    """
    return BufferedStreamReader(StreamReader(path, handle), _READ_AHEAD_BYTES)
