# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C interrupts every wait at once, and the library's own threads take no signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import headrace
import pytest
from support import FrozenFileSystem, random_bytes, wait_until_asleep

WAITS = {
    "result": "t.result()",
    "exception": "t.exception()",
    "wait": "headrace.wait([t])",
    "as_completed": "next(headrace.as_completed([t]))",
    "close": "h.close()",
    "leaving the block": "h.__exit__(None, None, None)",
    "await": "asyncio.run(main())",
    "commit": "f.commit()",
    "submission without room": "h.write(f, data)",
    "bulk call without room": "h.write_many([(f, data), (f, data)])",
    "bulk call with room for one": "h.write_many([(f, data), (f, data)])",
}
ROOM = {"submission without room": 1, "bulk call without room": 1, "bulk call with room for one": 2}
PROGRAM = """
    import asyncio, os, sys, headrace
    async def main():
        await t
    h = headrace.Handle(engine=sys.argv[2], requests_max=int(sys.argv[3]))
    f = h.replace(sys.argv[1], size=1 << 20)
    data = bytearray(1 << 20)
    print("ready", flush=True)
    sys.stdin.readline()
    t = h.write(f, data)
    while not t.running(): pass
    print("waiting", flush=True)
    try:
        {wait}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    sys.stdin.readline()
    print(t.exception() is None or type(t.exception()).__name__)
"""


@pytest.mark.parametrize("wait", list(WAITS))
def test_ctrl_c_interrupts_at_once(frozen: FrozenFileSystem, wait: str) -> None:
    engine = "posix" if wait in ("wait", "close") else "aio"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(PROGRAM).format(wait=WAITS[wait]),
            str(frozen.folder / "file"),
            engine,
            str(ROOM.get(wait, 100)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    frozen.freeze()
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "waiting\n"
    wait_until_asleep(process.pid)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    if wait == "commit":  # removing the temporary file needs the file system
        frozen.thaw()
    assert process.stdout.readline() == "interrupted\n"
    assert time.monotonic() - started < 2
    frozen.thaw()
    stdout, stderr = process.communicate("end\n", timeout=30)
    assert stdout.strip() in ("True", "AbortedError"), stderr
    assert process.returncode == 0, stderr


def test_signals_during_transfers_change_nothing(tmp_path: Path, engine: str) -> None:
    """EINTR is never the caller's business."""
    hits: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: hits.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        data = random_bytes(4 << 20)
        with headrace.Handle(engine=engine) as h:
            for _ in range(20):
                assert h.write(tmp_path / "file", data).result() == len(data)
                target = bytearray(len(data))
                assert h.read(tmp_path / "file", target, cache="bypass").result() == len(data)
                assert target == data
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits


def test_threads_of_the_library_block_all_signals(tmp_path: Path, engine: str) -> None:
    own = {str(thread.native_id) for thread in threading.enumerate()}
    with headrace.Handle(engine=engine) as h:
        transfer = h.write(tmp_path / "file", bytes(100_000))
        transfer.add_done_callback(lambda t: None)
        transfer.result()
        checked = 0
        for task in set(os.listdir("/proc/self/task")) - own:
            lines = Path(f"/proc/self/task/{task}/status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            if not fields["Name"].startswith("headrace"):
                continue
            blocked = int(fields["SigBlk"], 16)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGCHLD):
                assert blocked >> (number - 1) & 1, (fields["Name"], number)
            checked += 1
        assert checked >= 1


def test_a_handler_that_raises_interrupts_result(frozen: FrozenFileSystem, handle: headrace.Handle) -> None:
    path = frozen.folder / "file"
    path.write_bytes(b"")

    def stop(number: int, frame: object) -> None:
        raise InterruptedError("enough")

    before = signal.signal(signal.SIGALRM, stop)
    frozen.freeze()
    transfer = handle.write(path, bytes(1000))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(InterruptedError, match="enough"):
            transfer.result()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    frozen.thaw()
    assert transfer.result() == 1000
