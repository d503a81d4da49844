# SPDX-License-Identifier: Apache-2.0
"""However a program ends, with requests in flight: no abort, its own exit code, writes finished."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from support import FrozenFileSystem, evict, run_script, wait_until_asleep

START = """
    import sys, threading, time
    import headrace
    path, size = sys.argv[1], int(sys.argv[2])
    data = bytes([7]) * size
    h = headrace.Handle()
    w = h.write(path, data)
    r = h.read(path + ".in", bytearray(size))
"""
ENDS = {
    "falls off the end": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise KeyError('mine')", 1),
    "del": ("del h", 0),
    "del of the transfers": ("del w, r", 0),
    "del of everything": ("del h, w, r, data", 0),
    "an uncollected failure": ("h.write('/dev/full', data)", 0),
    "a callback": ("w.add_done_callback(lambda t: None)", 0),
    "a module-level reference from elsewhere": ("sys.modules['headrace'].kept = (h, w, r)", 0),
    "a cycle": ("w2 = [h, w]; w2.append(w2); del h, w", 0),
    # The exit aborts the read: exception() gives that to the thread instead of raising it there.
    "a daemon thread that waits": ("threading.Thread(target=r.exception, daemon=True).start()", 0),
}


@pytest.mark.parametrize("end", list(ENDS))
def test_a_program_may_end_with_requests_in_flight(tmp_path: Path, end: str) -> None:
    """DeepSpeed #1813: an assertion about pending operations ended the process and hid the first error."""
    code, status = ENDS[end]
    size = 4 << 20
    (tmp_path / "file.in").write_bytes(bytes(size))
    for _ in range(4):
        (tmp_path / "file").unlink(missing_ok=True)
        evict(tmp_path / "file.in")
        done = run_script(textwrap.dedent(START) + code, str(tmp_path / "file"), str(size))
        assert done.returncode == status, done.stderr
        assert (tmp_path / "file").read_bytes() == bytes([7]) * size
        if status == 1:
            assert done.stderr.strip().endswith("KeyError: 'mine'")
        elif end == "an uncollected failure":
            assert "ENOSPC" in done.stderr
        else:
            assert done.stderr == ""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError('mine')", "del h"])
def test_fifty_programs_end_as_they_should(tmp_path: Path, end: str) -> None:
    """One interpreter that forks fifty children, each of which ends by that statement."""
    code = f"""
        import os, sys
        import headrace
        statuses = set()
        for i in range(50):
            child = os.fork()
            if child == 0:
                h = headrace.Handle()
                w = h.write(sys.argv[1] + str(i), bytes(300_001))
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                {end or "pass"}
                sys.exit(0)
            statuses.add(os.waitpid(child, 0)[1])
        print(statuses)
    """
    done = run_script(code, str(tmp_path / "file"))
    expected = {"": 0, "sys.exit(3)": 3 << 8, "raise KeyError('mine')": 1 << 8, "del h": 0}[end]
    assert done.stdout.strip() == str({expected}), done.stderr
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [300_001] * 50


def test_callbacks_of_finished_transfers_run_before_the_exit(tmp_path: Path) -> None:
    code = """
        import sys, headrace
        h = headrace.Handle()
        for i in range(100):
            h.write(sys.argv[1], bytes(100), offset=i * 100).add_done_callback(lambda t: print("called"))
    """
    done = run_script(code, str(tmp_path / "file"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("called") == 100


def test_nothing_can_be_started_while_the_interpreter_exits(tmp_path: Path) -> None:
    code = """
        import atexit, sys
        def late():
            for start in (lambda: h.read(sys.argv[1], bytearray(1)), headrace.Handle):
                try:
                    start()
                except headrace.ClosedError as error:
                    print(error)
            print(t.result(), t.done(), h.closed)
            h.close()
            del globals()["h"], globals()["t"]
        atexit.register(late)
        import headrace
        h = headrace.Handle()
        t = h.write(sys.argv[1], bytes(1000))
    """
    done = run_script(code, str(tmp_path / "file"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["the interpreter is exiting"] * 2 + ["1000 True True"]


def test_an_unhandled_exception_in_a_with_block_is_the_programs_last_word(tmp_path: Path) -> None:
    code = """
        import sys, headrace
        with headrace.Handle() as h:
            h.write("/dev/full", bytes(10_000))
            raise KeyError("mine")
    """
    done = run_script(code)
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr
    if sys.version_info >= (3, 11):
        assert "ENOSPC" in done.stderr


STUCK = """
    import atexit, sys
    atexit.register(lambda: print("after", flush=True))
    import headrace
    h = headrace.Handle(engine="aio")
    data = bytearray(1 << 20)
    t = h.write(sys.argv[1], data)
    while not t.running(): pass
    print("running", flush=True)
    atexit.register(lambda: print("exiting", flush=True))
    sys.exit(3)
"""


def start_stuck(frozen: FrozenFileSystem) -> subprocess.Popen[str]:
    path = frozen.folder / "file"
    path.write_bytes(b"")
    frozen.freeze()
    command = [sys.executable, "-c", textwrap.dedent(STUCK), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["running\n", "exiting\n"]
    return process


def test_ctrl_c_ends_the_wait_for_a_stuck_device_at_exit(frozen: FrozenFileSystem) -> None:
    process = start_stuck(frozen)
    wait_until_asleep(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "after\n"
    frozen.thaw()
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 3


@pytest.mark.slow
@pytest.mark.watchdog(120)
def test_a_stuck_device_delays_the_exit_by_half_a_minute_at_most(frozen: FrozenFileSystem) -> None:
    """Then the interpreter ends; the process itself can only end when the kernel lets go."""
    process = start_stuck(frozen)
    started = time.monotonic()
    assert process.stdout is not None
    assert process.stdout.readline() == "after\n"
    assert 25 < time.monotonic() - started < 45
    frozen.thaw()
    _, stderr = process.communicate(timeout=30)
    assert "1 requests are unfinished: the device does not answer" in stderr
    assert process.returncode == 3
