# SPDX-License-Identifier: Apache-2.0
"""torch tensors over headrace's memory. Importing this module imports torch."""

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING, SupportsIndex

import torch

from ._core import Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._types import Pages

__all__ = ["empty"]


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
