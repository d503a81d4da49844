# SPDX-License-Identifier: Apache-2.0
"""Which operations of a handle must not run together: those on the same bytes of a file or of memory.

DeepSpeed runs the operations of a handle one after another; headrace runs them together, except where that
could be seen. One thread at a time; owns the table, not the operations.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from ._pending import Operation


# Ranges in the table before it is looked through for what is over.
_SIZE_TO_TIDY = 512


class Use(NamedTuple):
    """Bytes ``start`` to ``end`` of ``space`` (a file, or memory), which are changed or only looked at."""

    space: Hashable
    start: int
    end: int
    changes: bool


class _Ranges:
    """Ranges sorted by their start. None is longer than ``_longest``: what can overlap stands together."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._entries: list[tuple[int, Operation]] = []
        self._longest = 0

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int, operation: Operation) -> None:
        place = bisect_right(self._starts, start)
        self._starts.insert(place, start)
        self._entries.insert(place, (end, operation))
        self._longest = max(self._longest, end - start)

    def find(self, start: int, end: int) -> Operation | None:
        """An unfinished operation that shares bytes with this range."""
        place = bisect_left(self._starts, start - self._longest)
        while place < len(self._starts) and self._starts[place] < end:
            last, operation = self._entries[place]
            if last > start and not operation.settled():
                return operation
            place += 1
        return None

    def drop_settled(self) -> None:
        kept = [
            (start, entry)
            for start, entry in zip(self._starts, self._entries, strict=True)
            if not entry[1].settled()
        ]
        self._starts = [start for start, _ in kept]
        self._entries = [entry for _, entry in kept]


class Order:
    """The uses of the operations that may be unfinished."""

    def __init__(self) -> None:
        self._changed: dict[Hashable, _Ranges] = {}
        self._looked_at: dict[Hashable, _Ranges] = {}
        self._size = 0
        self._size_to_tidy = _SIZE_TO_TIDY

    def add(self, uses: Iterable[Use], operation: Operation) -> None:
        for use in uses:
            table = self._changed if use.changes else self._looked_at
            table.setdefault(use.space, _Ranges()).add(use.start, use.end, operation)
            self._size += 1
        if self._size >= self._size_to_tidy:
            self._tidy()

    def conflict(self, uses: Iterable[Use]) -> Operation | None:
        """An unfinished operation that must be over before one with these uses starts."""
        for use in uses:
            tables = (self._changed, self._looked_at) if use.changes else (self._changed,)
            for table in tables:
                ranges = table.get(use.space)
                found = ranges.find(use.start, use.end) if ranges is not None else None
                if found is not None:
                    return found
        return None

    def clear(self) -> None:
        self._changed.clear()
        self._looked_at.clear()
        self._size = 0
        self._size_to_tidy = _SIZE_TO_TIDY

    def _tidy(self) -> None:
        """Forgets what is over, so that the table stays small also where the handle is never idle."""
        for table in (self._changed, self._looked_at):
            for space, ranges in list(table.items()):
                ranges.drop_settled()
                if not ranges:
                    del table[space]
        self._size = sum(
            len(ranges) for table in (self._changed, self._looked_at) for ranges in table.values()
        )
        self._size_to_tidy = max(_SIZE_TO_TIDY, 2 * self._size)
