# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT012
"""Closing: nothing is lost in silence, nothing hides the first error, and a stuck device hangs nobody for
ever."""

from __future__ import annotations

import errno
import gc
import logging
import weakref
from pathlib import Path

import headrace
import pytest
from support import FrozenFileSystem, random_bytes, wait_until

FULL = "/dev/full"


def test_close_waits_for_everything_and_may_be_called_twice(tmp_path: Path, engine: str) -> None:
    h = headrace.Handle(engine=engine)
    data = random_bytes(8 << 20)
    transfers = [h.write(tmp_path / f"file{i}", data) for i in range(4)]
    assert not h.closed
    h.close()
    assert h.closed
    assert all(t.done() for t in transfers)
    assert "closed" in repr(h)
    h.close()
    h.close(timeout=0)
    for start in (
        lambda: h.read(tmp_path / "file0", bytearray(1)),
        lambda: h.write_many([]),
        lambda: h.__enter__().read_many([]),
    ):
        with pytest.raises(headrace.ClosedError, match="closed"):
            start()
    with pytest.raises(headrace.ClosedError):
        h.replace(tmp_path / "file", size=1)
    assert h.stats()["writes"]["bytes"] == 4 * len(data)


def test_a_failed_write_that_nobody_collected_raises_at_close(engine: str) -> None:
    h = headrace.Handle(engine=engine)
    h.write(FULL, bytes(10_000))
    with pytest.raises(headrace.TransferError) as caught:
        h.close()
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == FULL
    assert caught.value.operation == "write"
    h.close()


def test_a_failed_write_raises_when_its_block_is_left(engine: str) -> None:
    with pytest.raises(headrace.TransferError) as caught, headrace.Handle(engine=engine) as h:
        h.write(FULL, bytes(10_000))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("ask", ["result", "exception"])
def test_a_failure_that_was_collected_does_not_raise_again(ask: str) -> None:
    with headrace.Handle() as h:
        transfer = h.write(FULL, bytes(10_000))
        if ask == "exception":
            assert isinstance(transfer.exception(), headrace.TransferError)
        else:
            with pytest.raises(headrace.TransferError):
                transfer.result()


def test_waiting_for_a_failure_is_not_collecting_it() -> None:
    with pytest.raises(headrace.TransferError), headrace.Handle() as h:
        transfer = h.write(FULL, bytes(10_000))
        headrace.wait([transfer])
        assert transfer.done()
        assert not transfer.cancelled()


def test_a_failed_read_that_nobody_collected_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with headrace.Handle() as h:
        h.read(tmp_path / "file", bytearray(10))


def test_the_exception_in_flight_is_never_masked() -> None:
    with pytest.raises(ZeroDivisionError) as caught, headrace.Handle() as h:
        h.write(FULL, bytes(10_000))
        _ = 1 / 0
    if hasattr(caught.value, "__notes__"):
        assert "ENOSPC" in caught.value.__notes__[0]
    else:
        assert isinstance(caught.value.__context__, headrace.TransferError)


def test_an_exception_in_the_block_aborts_reads_and_finishes_writes(tmp_path: Path) -> None:
    data = random_bytes(64 << 20)
    (tmp_path / "in").write_bytes(data)
    target = bytearray(len(data))
    read = None
    with pytest.raises(KeyError), headrace.Handle(workers=1, queue_depth=1, block_bytes=4096) as h:
        read = h.read(tmp_path / "in", target, cache="bypass")
        h.write(tmp_path / "out", data[:100_000])
        raise KeyError("mine")
    assert read is not None
    assert isinstance(read.exception(timeout=0), headrace.AbortedError)
    assert (tmp_path / "out").read_bytes() == data[:100_000]


def test_close_gives_up_on_a_stuck_device_and_keeps_the_memory(frozen: FrozenFileSystem, engine: str) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"")
    h = headrace.Handle(engine=engine)
    data = bytearray(random_bytes(1 << 20))
    frozen.freeze()
    transfer = h.write(path, data)
    wait_until(transfer.running)
    with pytest.raises(TimeoutError, match="not done"):
        h.close(timeout=0.1)
    with pytest.raises(BufferError):
        data.append(0)
    with pytest.raises(headrace.ClosedError):
        h.write(path, b"abc")
    frozen.thaw()
    h.close(timeout=30)
    data.append(0)
    assert transfer.result() == 1 << 20


def test_memory_is_released_by_close_even_if_nobody_looked_at_the_transfer(tmp_path: Path) -> None:
    data = bytearray(1000)
    h = headrace.Handle()
    transfer = h.write(tmp_path / "file", data)
    h.close()
    data.append(0)
    assert transfer.done()


def test_a_dropped_handle_finishes_its_writes(tmp_path: Path, engine: str) -> None:
    data = random_bytes(16 << 20)
    h = headrace.Handle(engine=engine)
    transfer = h.write(tmp_path / "file", data)
    gone = weakref.ref(h)
    del h
    gc.collect()
    assert gone() is None
    assert transfer.result(timeout=0) == len(data)
    assert (tmp_path / "file").read_bytes() == data


def test_a_dropped_handle_logs_the_failure_that_nobody_collected(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="headrace"):
        h = headrace.Handle()
        h.write(FULL, bytes(10_000))
        del h
        gc.collect()
    (record,) = [r for r in caplog.records if r.name == "headrace"]
    assert "ENOSPC" in record.getMessage()
    assert FULL in record.getMessage()


def test_facts_and_stats_tell_what_happened(tmp_path: Path, engine: str) -> None:
    with headrace.Handle(engine=engine, workers=2, block_bytes=1 << 20, queue_depth=8) as h:
        facts = h.facts()
        assert (facts["engine"], facts["workers"], facts["block_bytes"], facts["queue_depth"]) == (
            engine,
            2,
            1 << 20,
            8,
        )
        h.write(tmp_path / "file", bytes(5000)).result()
        h.read(tmp_path / "file", bytearray(5000)).result()
        assert h.read(tmp_path / "file", bytearray(5001)).exception() is not None
        with pytest.raises(headrace.TransferError):
            h.write(FULL, bytes(10)).result()
    stats = h.stats()
    assert stats["requests"] == 4
    assert stats["failed"] == 2
    assert stats["unfinished_requests"] == 0
    assert stats["errors_by_errno"] == {0: 1, errno.ENOSPC: 1}
    assert stats["writes"]["bytes"] == 5000
    assert stats["reads"]["requests"] == 2
    by_route = stats["writes"]["bytes_by_route"]
    assert by_route["direct"] + by_route["buffered"] == 5000
    latency = stats["reads"]["latency_ns"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "fast"},
        {"workers": 0},
        {"workers": 65},
        {"workers": -1},
        {"block_bytes": 1},
        {"block_bytes": 4097},
        {"queue_depth": 0},
        {"queue_depth": 1 << 40},
        {"requests_max": 0},
        {"when_full": "panic"},
        {"direct": True},
        {"registered": "maybe"},
        {"staging_pages": "huge"},
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        headrace.Handle(**options)  # type: ignore[arg-type]
    if isinstance(caught.value, ValueError):
        assert next(iter(options)).split("_")[-1] in str(caught.value)
