# SPDX-License-Identifier: Apache-2.0
"""The interpreter goes on while the library waits: waits let go of the GIL, and I/O threads never take it."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import headrace
import pytest
from support import FrozenFileSystem, random_bytes

BLOCKING = {
    "opening a new file": lambda h, t, folder: h.write(folder / "new", b"abc").result(),
    "opening one for a bulk call": lambda h, t, folder: h.write_many([(folder / "new", b"abc")])[0].result(),
    "File": lambda h, t, folder: headrace.File(folder / "new", "update").close(),
    "replace": lambda h, t, folder: h.replace(folder / "new", size=3).commit(),
    "a replacing write": lambda h, t, folder: h.write(folder / "new", b"abc", mode="replace").result(),
    "result": lambda h, t, folder: t.result(),
    "exception": lambda h, t, folder: t.exception(),
    "wait": lambda h, t, folder: headrace.wait([t]),
    "as_completed": lambda h, t, folder: list(headrace.as_completed([t])),
    "close": lambda h, t, folder: h.close(),
    "leaving a block": lambda h, t, folder: h.__exit__(None, None, None),
    "a submission to a full handle": lambda h, t, folder: h.read("/dev/zero", bytearray(1)).result(),
}


@pytest.mark.parametrize("what", list(BLOCKING))
def test_other_threads_run_while_one_blocks(frozen: FrozenFileSystem, what: str) -> None:
    """This thread gets to thaw the file system only if the other one does not keep the GIL."""
    path = frozen.folder / "file"
    path.write_bytes(b"")
    full = what.startswith("a submission")
    with headrace.Handle(engine="posix", workers=4, requests_max=1 if full else 100) as h:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                BLOCKING[what](h, transfer, frozen.folder)
            except BaseException as error:
                failures.append(error)

        frozen.freeze()
        transfer = h.write(path, bytes(100_000))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        frozen.thaw()
        thread.join()
    assert not failures


def test_dropping_a_handle_does_not_hold_up_the_others(frozen: FrozenFileSystem) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"")
    handles = [headrace.Handle(engine="aio")]
    frozen.freeze()
    transfer = handles[0].write(path, bytes(100_000))
    thread = threading.Thread(target=handles.clear)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    frozen.thaw()
    thread.join()
    assert transfer.result() == 100_000


@pytest.fixture
def slow_switches() -> Iterator[None]:
    """The GIL changes hands after ten seconds only: a thread that wants it for each transfer would show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(10)
    yield
    sys.setswitchinterval(before)


def test_transfers_finish_while_a_thread_never_lets_go_of_the_gil(
    tmp_path: Path, engine: str, slow_switches: None
) -> None:
    data = random_bytes(8 << 20)
    with headrace.Handle(engine=engine) as h:
        transfers = h.write_many(
            [(tmp_path / "file", data[i << 20 : (i + 1) << 20], i << 20) for i in range(8)]
        )
        while not all(t.running() or t.done() for t in transfers):
            pass
        while not all(t.done() for t in transfers):
            pass
        assert sum(t.result() for t in transfers) == len(data)


def test_dropped_transfers_give_their_memory_back_once_python_lets_them(tmp_path: Path, engine: str) -> None:
    """The dispatcher thread drops the references; it has to wait for the GIL, and the I/O threads do not."""

    class Tracked(bytearray):
        alive = 0

        def __init__(self, data: bytes) -> None:
            super().__init__(data)
            Tracked.alive += 1

        def __del__(self) -> None:
            Tracked.alive -= 1

    with headrace.Handle(engine=engine) as h:
        for i in range(200):
            h.write(tmp_path / "file", Tracked(b"x" * 10_000), offset=i * 10_000)
    event = threading.Event()
    while Tracked.alive:
        event.wait(0.001)
    assert (tmp_path / "file").read_bytes() == b"x" * 2_000_000


def test_a_destructor_may_use_the_library(tmp_path: Path, handle: headrace.Handle) -> None:
    """References are dropped on the dispatcher thread, and dropping one runs whatever its owner wants."""
    done = threading.Event()
    seen: list[object] = []

    class Curious(bytearray):
        def __del__(self) -> None:
            try:
                seen.append(handle.write(tmp_path / "second", b"abc").result())
            except BaseException as error:
                seen.append(error)
            done.set()

    handle.write(tmp_path / "first", Curious(b"x" * 100_000))
    gc.collect()
    assert done.wait(30)
    assert seen == [3]


def run_in_threads(work: Callable[[], None], count: int) -> None:
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_threads_may_wait_for_cancel_and_abort_the_same_transfers(tmp_path: Path, engine: str) -> None:
    data = random_bytes(1 << 20)
    (tmp_path / "file").write_bytes(data)
    for _ in range(10):
        with headrace.Handle(engine=engine, workers=1, queue_depth=2, block_bytes=65536) as h:
            reads = h.read_many([(tmp_path / "file", bytearray(len(data))) for _ in range(16)])

            def work(reads: list[headrace.Transfer] = reads) -> None:
                for i, read in enumerate(reads):
                    if i % 3 == 0:
                        read.cancel()
                    elif i % 3 == 1:
                        read.abort()
                headrace.wait(reads)
                for read in reads:
                    assert read.done()
                    if read.cancelled():
                        continue
                    error = read.exception()
                    assert error is None or isinstance(error, headrace.AbortedError)

            run_in_threads(work, 4)


def test_close_may_be_called_while_others_submit(tmp_path: Path, engine: str) -> None:
    for _ in range(10):
        h = headrace.Handle(engine=engine)

        def work(h: headrace.Handle = h) -> None:
            try:
                for i in range(1000):
                    h.write(tmp_path / "file", bytes(100), offset=i * 100)
            except headrace.ClosedError:
                pass

        closer = threading.Timer(0.005, h.close)
        closer.start()
        run_in_threads(work, 4)
        closer.join()
        h.close()
