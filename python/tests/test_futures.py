# SPDX-License-Identifier: Apache-2.0
"""A Transfer is a future: result, timeouts, cancel, abort, callbacks, wait, as_completed."""

from __future__ import annotations

import concurrent.futures
import logging
import queue
import threading
from pathlib import Path

import headrace
import pytest
from support import FrozenFileSystem, random_bytes, wait_until


def stuck_write(
    h: headrace.Handle, frozen: FrozenFileSystem, name: str = "file", size: int = 1 << 20
) -> headrace.Transfer:
    """A write that hangs until the file system thaws."""
    path = frozen.folder / name
    path.write_bytes(b"")
    frozen.freeze()
    return h.write(path, random_bytes(size))


def test_the_constants_are_those_of_concurrent_futures() -> None:
    for name in ("FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED"):
        assert getattr(headrace, name) == getattr(concurrent.futures, name)


def test_a_done_transfer_answers_every_question(tmp_path: Path, handle: headrace.Handle) -> None:
    transfer = handle.write(tmp_path / "file", b"abc", offset=5)
    assert transfer.result() == transfer.result(timeout=0) == transfer.result(0.0) == 3
    assert transfer.done()
    assert not transfer.running()
    assert not transfer.cancel()
    assert not transfer.cancelled()
    transfer.abort()
    assert transfer.exception() is None
    assert (transfer.operation, transfer.offset, transfer.length) == ("write", 5, 3)
    assert transfer.route is not None
    assert transfer.route.engine in ("uring", "aio", "posix")
    assert "done" in repr(transfer)
    assert "file" in repr(transfer)


def test_a_timeout_is_the_builtin_one_and_the_work_goes_on(
    frozen: FrozenFileSystem, engine_handle: headrace.Handle
) -> None:
    transfer = stuck_write(engine_handle, frozen)
    with pytest.raises(TimeoutError) as caught:
        transfer.result(timeout=0.05)
    assert type(caught.value) is TimeoutError
    with pytest.raises(TimeoutError):
        transfer.exception(timeout=0)
    assert not transfer.done()
    assert transfer.route is None
    frozen.thaw()
    assert transfer.result(timeout=30) == 1 << 20


@pytest.mark.parametrize("timeout", [float("nan"), "soon", object()])
def test_a_timeout_that_is_no_time_is_refused(
    tmp_path: Path, handle: headrace.Handle, timeout: object
) -> None:
    transfer = handle.write(tmp_path / "file", b"abc")
    with pytest.raises((TypeError, ValueError)):
        transfer.result(timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**9, -1.0])
def test_extreme_timeouts_work(tmp_path: Path, handle: headrace.Handle, timeout: float) -> None:
    transfer = handle.write(tmp_path / "file", b"abc")
    headrace.wait([transfer])
    assert transfer.result(timeout=timeout) == 3


def test_cancel_works_before_anything_was_sent(frozen: FrozenFileSystem) -> None:
    with headrace.Handle(engine="posix", workers=1, queue_depth=1, block_bytes=4096) as h:
        first = stuck_write(h, frozen)
        second = h.read(frozen.folder / "file", bytearray(10))
        assert not second.done()
        assert second.cancel()
        assert second.cancelled()
        assert second.done()
        assert not second.running()
        assert "cancelled" in repr(second)
        for ask in (second.result, second.exception):
            with pytest.raises(concurrent.futures.CancelledError):
                ask()
        assert not first.cancel() or first.cancelled()
        first.abort()
        frozen.thaw()
        headrace.wait([first])


def test_abort_stops_what_was_not_sent(frozen: FrozenFileSystem) -> None:
    with headrace.Handle(engine="posix", workers=1, queue_depth=1, block_bytes=4096) as h:
        transfer = stuck_write(h, frozen, size=1 << 20)
        wait_until(transfer.running)
        transfer.abort()
        assert not transfer.done(), "the kernel still holds a block of it"
        frozen.thaw()
        with pytest.raises(headrace.AbortedError) as caught:
            transfer.result(timeout=30)
        assert caught.value.transferred < 1 << 20
        assert caught.value.length == 1 << 20
        assert isinstance(transfer.exception(), headrace.AbortedError)
        assert h.write(frozen.folder / "file", b"abc").result() == 3


def test_callbacks_run_once_on_the_dispatcher_thread(tmp_path: Path, handle: headrace.Handle) -> None:
    called: queue.Queue[tuple[object, str]] = queue.Queue()
    transfer = handle.write(tmp_path / "file", b"abc")
    for _ in range(3):
        transfer.add_done_callback(lambda t: called.put((t, threading.current_thread().name)))
    transfer.result()
    transfer.add_done_callback(lambda t: called.put((t, threading.current_thread().name)))
    seen = [called.get(timeout=20) for _ in range(4)]
    assert all(t is transfer for t, _ in seen)
    assert all(name != threading.main_thread().name for _, name in seen)
    assert called.empty()


def test_a_callback_that_raises_is_logged_and_the_next_one_runs(
    tmp_path: Path, handle: headrace.Handle, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()

    def fail(_: headrace.Transfer) -> None:
        raise RuntimeError("from the callback")

    with caplog.at_level(logging.ERROR, logger="headrace"):
        transfer = handle.write(tmp_path / "file", b"abc")
        transfer.add_done_callback(fail)
        transfer.add_done_callback(lambda _: ran.set())
        assert ran.wait(20)
    (record,) = [r for r in caplog.records if r.name == "headrace"]
    assert "exception calling callback" in record.getMessage()
    assert record.exc_info is not None
    assert "from the callback" in str(record.exc_info[1])


def test_a_callback_may_start_wait_for_and_close_things(tmp_path: Path) -> None:
    done: queue.Queue[object] = queue.Queue()
    h = headrace.Handle()

    def go_on(t: headrace.Transfer) -> None:
        try:
            target = bytearray(3)
            h.read(tmp_path / "file", target).result(timeout=20)
            h.close(timeout=20)
            done.put(bytes(target))
        except BaseException as error:
            done.put(error)

    h.write(tmp_path / "file", b"abc").add_done_callback(go_on)
    assert done.get(timeout=30) == b"abc"


def test_what_is_not_callable_is_refused(tmp_path: Path, handle: headrace.Handle) -> None:
    with pytest.raises(TypeError, match="not callable"):
        handle.write(tmp_path / "file", b"abc").add_done_callback(3)  # type: ignore[arg-type]


def test_wait_tells_the_done_from_the_others(
    frozen: FrozenFileSystem, tmp_path: Path, handle: headrace.Handle
) -> None:
    stuck = stuck_write(handle, frozen)
    quick = handle.write(tmp_path / "file", b"abc")
    done, not_done = headrace.wait([stuck, quick], timeout=20, return_when=headrace.FIRST_COMPLETED)
    assert (done, not_done) == ({quick}, {stuck})
    result = headrace.wait([stuck, quick], timeout=0.05)
    assert (result.done, result.not_done) == ({quick}, {stuck})
    frozen.thaw()
    assert headrace.wait([stuck, quick], timeout=30).not_done == set()
    assert headrace.wait([]) == (set(), set())


def test_wait_for_the_first_exception(
    frozen: FrozenFileSystem, tmp_path: Path, handle: headrace.Handle
) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    stuck = stuck_write(handle, frozen)
    failing = handle.read(tmp_path / "short", bytearray(10))
    done, _ = headrace.wait([stuck, failing], timeout=20, return_when=headrace.FIRST_EXCEPTION)
    assert done == {failing}
    frozen.thaw()
    with pytest.raises(ValueError, match="FIRST_EXCEPTION"):
        headrace.wait([failing], return_when="WHENEVER")
    with pytest.raises((TypeError, RuntimeError)):
        headrace.wait([object()])  # type: ignore[list-item]


def test_as_completed_yields_each_once_as_they_finish(
    frozen: FrozenFileSystem, tmp_path: Path, handle: headrace.Handle
) -> None:
    stuck = stuck_write(handle, frozen)
    quick = handle.write_many([(tmp_path / "file", bytes(100), i * 100) for i in range(50)])
    each = headrace.as_completed([stuck, *quick, quick[0]], timeout=30)
    assert {next(each) for _ in range(50)} == set(quick)
    frozen.thaw()
    assert list(each) == [stuck]


def test_as_completed_gives_up_in_time(
    frozen: FrozenFileSystem, tmp_path: Path, handle: headrace.Handle
) -> None:
    stuck = stuck_write(handle, frozen)
    quick = handle.write(tmp_path / "file", b"abc")
    each = headrace.as_completed([stuck, quick], timeout=0.2)
    assert next(each) is quick
    with pytest.raises(TimeoutError, match="1 of 2 transfers are not done"):
        next(each)
    frozen.thaw()


def test_as_completed_of_ten_thousand(tmp_path: Path, handle: headrace.Handle) -> None:
    transfers = handle.write_many([(tmp_path / "file", bytes(8), i * 8) for i in range(10_000)])
    assert sum(t.result() for t in headrace.as_completed(transfers)) == 80_000


def test_a_handle_made_to_raise_refuses_more_than_its_limit(frozen: FrozenFileSystem, tmp_path: Path) -> None:
    with headrace.Handle(requests_max=1, when_full="raise") as h:
        stuck = stuck_write(h, frozen)
        with pytest.raises(headrace.LimitError, match=r"requests_max|unfinished"):
            h.write(tmp_path / "file", b"abc")
        frozen.thaw()
        stuck.result()
        assert h.write(tmp_path / "file", b"abc").result() == 3
