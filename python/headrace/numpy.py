# SPDX-License-Identifier: Apache-2.0
"""numpy arrays over headrace's memory. Importing this module imports numpy."""

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy

from ._core import Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._types import Pages

__all__ = ["empty"]


def empty(
    shape: SupportsIndex | Sequence[int],
    dtype: Any = float,
    *,
    pages: Pages = "transparent",
    lock: bool = True,
) -> numpy.ndarray[Any, Any]:
    """An array of this shape and dtype over a headrace.Buffer, in C order, freed when its last view dies.

    The values are zeros at first. ``pages`` and ``lock`` as in headrace.Buffer. Raises ValueError for a dtype
    that holds Python objects, MemoryError when the memory is not to be had.
    """
    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise ValueError("headrace memory holds bytes, not Python objects: dtype object is refused")
    sizes = (index(shape),) if isinstance(shape, SupportsIndex) else tuple(index(n) for n in shape)
    if any(n < 0 for n in sizes):
        raise ValueError(f"an array cannot have the negative shape {sizes}")
    count = math.prod(sizes)
    if count * kind.itemsize >= 1 << 63:
        raise MemoryError(f"no memory holds {count} elements of {kind}")
    buffer = Buffer(count * kind.itemsize, pages=pages, lock=lock)
    array: numpy.ndarray[Any, Any] = numpy.ndarray(sizes, dtype=kind, buffer=buffer)
    return array
