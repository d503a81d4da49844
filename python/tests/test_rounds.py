# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT012
"""A thousand rounds of everything, failures included: descriptors, threads, memory and locked memory stay
flat."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import headrace
import pytest
from support import ENGINES, open_descriptors, random_bytes, status_bytes

SLACK_BYTES = 16 << 20
STAGING_BYTES = 8 << 20  # staging memory is touched as it is needed, and is then kept
HELPERS_MAX = 8  # threads that an engine starts when it first needs them


def rounds_for(engine: str) -> int:
    """A thousand for the engine that is the default here; the others share everything but their own few
    lines."""
    return 1000 if engine == ENGINES[0] else 200


def threads() -> int:
    """The threads of this process, without those that the kernel lends to io_uring as it sees fit."""
    count = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            count += not Path(f"/proc/self/task/{task}/comm").read_text().startswith("iou-")
    return count


def usage() -> tuple[int, int]:
    gc.collect()
    return len(open_descriptors()), threads()


def flat(folder: Path, work: Callable[[int], None], rounds: int) -> None:
    """Runs the rounds; what the first twenty took (caches, pools, threads made on demand) is the measure."""
    for round_ in range(20):
        work(round_)
    before, resident, locked = usage(), status_bytes("VmRSS"), status_bytes("VmLck")
    for round_ in range(rounds):
        work(round_)
    descriptors, running = usage()
    assert descriptors == before[0]
    assert running <= before[1] + HELPERS_MAX
    assert status_bytes("VmLck") <= locked
    assert status_bytes("VmRSS") < resident + SLACK_BYTES
    assert not [
        name for name in open_descriptors() if name.startswith(str(folder)) and name.endswith("(deleted)")
    ]


def test_reads_and_writes_by_path_leak_nothing(tmp_path: Path, engine: str) -> None:
    """DeepSpeed #8003, PR 8075: a descriptor leaked per request."""
    data = random_bytes(70_001)
    target = bytearray(len(data))
    path = tmp_path / "file"
    with headrace.Handle(engine=engine, staging_bytes=STAGING_BYTES) as h:

        def work(round_: int) -> None:
            h.write(path, data).result()
            h.read(path, target).result()
            if round_ % 10 == 0:
                h.write(path, data, mode="replace").result()
            headrace.wait(h.write_many([(path, data, 0), (tmp_path / "other", data, 5)]))
            path.unlink(missing_ok=True)
            if round_ % 50 == 0:
                assert os.statvfs(tmp_path).f_bavail > 0

        flat(tmp_path, work, rounds_for(engine))


def test_failures_of_every_kind_leak_nothing(tmp_path: Path, engine: str) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    os.mkfifo(tmp_path / "fifo")
    with headrace.Handle(engine=engine, staging_bytes=STAGING_BYTES) as h:

        def work(_: int) -> None:
            transfers = [h.write("/dev/full", bytes(5000)), h.read(tmp_path / "short", bytearray(10))]
            assert all(t.exception() is not None for t in transfers)
            for path in ("missing", "fifo", "short/below", "."):
                with pytest.raises(headrace.TransferError):
                    h.read(tmp_path / path, bytearray(1))
            with pytest.raises(FileExistsError):
                h.write(tmp_path / "short", b"x", mode="create")
            with pytest.raises(FileNotFoundError):
                h.read_many([(tmp_path / "short", bytearray(1)), (tmp_path / "missing", bytearray(1))])
            with pytest.raises(ValueError):
                h.read(tmp_path / "short", b"read-only")
            with pytest.raises(KeyError), h.replace(tmp_path / "new", size=5000) as file:
                h.write(file, bytes(5000))
                raise KeyError

        flat(tmp_path, work, rounds_for(engine))
    assert sorted(os.listdir(tmp_path)) == ["fifo", "short"]


def test_handles_leak_nothing(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "file"

    def work(round_: int) -> None:
        h = headrace.Handle(engine=engine, workers=2, queue_depth=8, staging_bytes=4 << 20)
        transfer = h.write(path, bytes(100_000))
        if round_ % 3 == 0:
            transfer.result()
            h.close()
        elif round_ % 3 == 1:
            with h:
                pass

    flat(tmp_path, work, rounds=200)


def test_buffers_leak_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 << 20))
    handle = headrace.Handle(staging_bytes=STAGING_BYTES)

    def work(_: int) -> None:
        buffer = headrace.Buffer(3 << 20)
        handle.read(path, buffer).result()
        buffer.__dlpack__()
        memoryview(buffer)[5:].release()

    flat(tmp_path, work, rounds=300)


def test_transfers_that_nobody_keeps_leak_nothing(tmp_path: Path) -> None:
    data = bytes(5000)

    finished = threading.Semaphore(0)
    handle = headrace.Handle(staging_bytes=STAGING_BYTES)

    def work(_: int) -> None:
        for i in range(10):
            handle.write(tmp_path / "file", bytearray(data), offset=i * 5000)
            handle.read(tmp_path / "file", bytearray(10), partial=True).add_done_callback(
                lambda t: finished.release()
            )
        for _ in range(10):
            finished.acquire()

    flat(tmp_path, work, rounds=1000)
