# SPDX-License-Identifier: Apache-2.0
"""wait, as_completed and await for transfers, with the names and meanings of concurrent.futures."""

from __future__ import annotations

import time
from collections import namedtuple

from . import _core

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from typing import NamedTuple

    from ._core import Transfer

FIRST_COMPLETED = "FIRST_COMPLETED"
FIRST_EXCEPTION = "FIRST_EXCEPTION"
ALL_COMPLETED = "ALL_COMPLETED"


if TYPE_CHECKING:

    class DoneAndNotDone(NamedTuple):
        done: set[Transfer]
        not_done: set[Transfer]
else:
    DoneAndNotDone = namedtuple("DoneAndNotDone", ("done", "not_done"))
    DoneAndNotDone.__doc__ = "What wait() returns: two sets of transfers."


def wait(
    transfers: Iterable[Transfer], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> DoneAndNotDone:
    """Waits until one (FIRST_COMPLETED), all (ALL_COMPLETED) or a failed one (FIRST_EXCEPTION) is done.

    At most ``timeout`` seconds; then it returns what is done by then and raises nothing. Results stay
    uncollected: a failed write that is only waited for still raises when its handle closes.
    """
    waited_for = set(transfers)
    _core.wait_for(waited_for, return_when, timeout)
    done = {transfer for transfer in waited_for if transfer.done()}
    return DoneAndNotDone(done, waited_for - done)


def as_completed(transfers: Iterable[Transfer], timeout: float | None = None) -> Iterator[Transfer]:
    """Yields each transfer once, in the order in which they finish.

    Raises TimeoutError when the next one is not done ``timeout`` seconds after this call.
    """
    end = None if timeout is None else time.monotonic() + timeout
    each = list(dict.fromkeys(transfers))
    return _in_order(_core.Completions(each), each, end)


def _in_order(completions: _core.Completions, each: list[Transfer], end: float | None) -> Iterator[Transfer]:
    pending: list[Transfer | None] = [*each]
    each.clear()
    for finished in range(len(pending)):
        left = None if end is None else end - time.monotonic()
        try:
            position = completions.next(left)
        except TimeoutError:
            left_over = len(pending) - finished
            raise TimeoutError(f"{left_over} of {len(pending)} transfers are not done") from None
        transfer = pending[position]
        pending[position] = None  # the caller may drop it, and its memory, at once
        assert transfer is not None
        yield transfer
        del transfer


def await_transfer(transfer: Transfer) -> Generator[object, None, int]:
    """``await transfer`` in asyncio: wakes the loop that runs now.

    A task that is cancelled meanwhile tries to cancel the transfer.
    """
    if not transfer.done():
        import asyncio

        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def settle() -> None:
            if not future.done():
                future.set_result(None)

        def wake(_: Transfer) -> None:
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                if not loop.is_closed():
                    raise

        transfer.add_done_callback(wake)
        try:
            yield from future
        except asyncio.CancelledError:
            transfer.cancel()
            raise
    return transfer.result(timeout=0)
