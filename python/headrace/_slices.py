# SPDX-License-Identifier: Apache-2.0
"""Which run of elements of a stored tensor an index needs."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any


def leading_run(index: Any, shape: list[int]) -> tuple[int, list[int], Any]:
    """Number of the first element to read, shape of what is read, and the index into that.

    Numbers at the front of the index, and one slice behind them, narrow down what is read; all else is left
    for the index into it. Raises IndexError, and ValueError for a step below 1, in the words of torch.
    """
    parts = index if isinstance(index, tuple) else (index,)
    first = 0
    left = list(shape)
    for at, part in enumerate(parts):
        if not left:
            return first, left, parts[at:]
        row_elements = math.prod(left[1:])
        if isinstance(part, slice):
            if part.step is not None and part.step < 1:
                raise ValueError("step must be greater than zero")
            wanted = range(left[0])[part]
            left[0] = wanted[-1] + 1 - wanted[0] if wanted else 0
            return (
                first + wanted.start * row_elements,
                left,
                (slice(None, None, wanted.step), *parts[at + 1 :]),
            )
        if isinstance(part, bool) or not isinstance(part, Integral):
            # A list that is the whole index is not the same to torch as a tuple of that list.
            return first, left, parts[at:] if at else index
        row = int(part)
        if not -left[0] <= row < left[0]:
            raise IndexError(f"index {row} is out of bounds for dimension {at} with size {left[0]}")
        first += (row + left[0] if row < 0 else row) * row_elements
        del left[0]
    return first, left, ()
