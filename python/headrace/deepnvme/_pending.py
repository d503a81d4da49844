# SPDX-License-Identifier: Apache-2.0
"""The unfinished operations of one handle, and the wait for all of them with its count.

Any thread may use a Pending. No lock is held while something is waited for.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ._order import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace import Transfer

    from ._order import Use

_OTHERS_NAMED = 3  # failures that are named in the note of the one that is raised


class _Thread(threading.local):
    """What stands for the calling thread; unlike its identifier, never used again by another one."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


class Operation:
    """One read or write:

    its transfer, then ``after`` (a copy to its destination, a comparison), which runs once.
    """

    __slots__ = ("_after", "_error", "_lock", "submitter", "told_submitter", "transfer")

    def __init__(self, transfer: Transfer, after: Callable[[], None] | None) -> None:
        self.transfer = transfer
        self.submitter = _thread.token
        self.told_submitter = False
        self._after = after
        self._error: Exception | None = None
        self._lock = threading.Lock() if after is not None else None

    def settled(self) -> bool:
        """True when nothing of it is left to do."""
        return self._after is None and self.transfer.done()

    def complete(self) -> None:
        """Waits until nothing of it is left to do, and raises what went wrong, however often it is called."""
        self.transfer.result()
        if self._lock is None:
            return
        with self._lock:
            after, self._after = self._after, None
            if after is not None:
                try:
                    after()
                except Exception as error:
                    self._error = error
                except BaseException:
                    self._after = after
                    raise
        if self._error is not None:
            raise self._error

    def failure(self) -> Exception | None:
        """complete(), with the error as a value."""
        try:
            self.complete()
        except Exception as error:
            return error
        return None


class Pending:
    """What was submitted to one handle and not yet waited for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All of these under the lock.
        self._waiting: list[Operation] = []  # asynchronous ones that no wait has taken
        self._taken: set[Operation] = set()  # taken by a wait that is not over
        self._order = Order()
        self._untold: list[
            tuple[object, Exception]
        ] = []  # failures that another thread than the submitter's met

    def __bool__(self) -> bool:
        """False when nothing is unfinished."""
        return bool(self._waiting or self._taken)

    def add(self, operation: Operation, uses: Sequence[Use]) -> None:
        with self._lock:
            self._waiting.append(operation)
            self._order.add(uses, operation)

    def let_conflicts_end(self, uses: Sequence[Use]) -> None:
        """Waits for the unfinished operations that one with these uses may not overtake."""
        while True:
            with self._lock:
                operation = self._order.conflict(uses)
            if operation is None:
                return
            error = operation.failure()  # raised by the wait that takes it
            if (
                error is not None and not operation.settled()
            ):  # it cannot be waited for: it is another process's
                raise error

    def drain(self, own: Operation | None = None) -> int:
        """Waits until the handle is idle. Returns how many operations it took: those none had, and ``own``.

        If any failed, raises the first one's error when all are over. An operation that another thread took
        is waited for, not counted; if it was submitted by this thread and failed, this call raises that too.
        """
        with self._lock:
            mine = self._waiting
            others = list(self._taken) if self._taken else []
            self._waiting = []
            self._taken.update(mine)
        try:
            count, failures = len(mine), self._failures(mine, others)
            if own is not None:
                count += 1
                error = own.failure()
                if error is not None:
                    failures.append(error)
        except BaseException:  # Ctrl-C: nothing was counted
            with self._lock:
                self._taken.difference_update(mine)
                self._waiting[:0] = mine if own is None else [*mine, own]
            raise
        with self._lock:
            self._taken.difference_update(mine)
            if not self._waiting and not self._taken:
                self._order.clear()
            if self._untold:
                failures += [error for thread, error in self._untold if thread is _thread.token]
                self._untold = [entry for entry in self._untold if entry[0] is not _thread.token]
        if not failures:
            return count
        error = _first_of(failures, count)
        try:
            raise error
        finally:
            del error, failures  # the traceback keeps this frame: no cycle that only the collector finds

    def _failures(self, mine: list[Operation], others: list[Operation]) -> list[Exception]:
        failures = []
        for operation in mine:
            error = operation.failure()
            if error is None:
                continue
            failures.append(error)
            if operation.submitter is not _thread.token:
                with self._lock:
                    if not operation.told_submitter:
                        operation.told_submitter = True
                        self._untold.append((operation.submitter, error))
        for operation in others:
            error = operation.failure()
            if error is not None and operation.submitter is _thread.token:
                with self._lock:
                    told, operation.told_submitter = operation.told_submitter, True
                if not told:
                    failures.append(error)
        return failures


def _first_of(failures: list[Exception], count: int) -> Exception:
    """The first one, with a note that tells of the others."""
    first = failures[0]
    if len(failures) > 1 and hasattr(first, "add_note"):  # Python 3.11
        named = "; ".join(str(error) for error in failures[1 : 1 + _OTHERS_NAMED])
        first.add_note(f"{len(failures)} of {count} operations failed; the next: {named}")
    return first
