# SPDX-License-Identifier: Apache-2.0
"""headrace.deepnvme between threads, over a thousand operations, at the end: counts, locks, descriptors."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import headrace  # noqa: E402
import support  # noqa: E402
from headrace import deepnvme  # noqa: E402

BYTE = torch.empty(0, dtype=torch.uint8)
THREADS = 8


def numbers(count: int, seed: int) -> Any:
    return torch.arange(count, dtype=torch.int32).add_(seed)


def together(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Runs work(0), work(1) ... in threads that start at once; the results in that order."""
    gate = threading.Barrier(threads)

    def one(index: int) -> Any:
        gate.wait()
        return work(index)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(threads)))


# ---- counts ----


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "ordinary"])
def test_sync_calls_of_threads_on_one_handle_count_their_own(tmp_path: Path, locked: bool) -> None:
    handle = deepnvme.aio_handle(4096, 8, False, True, 2)
    for index in range(THREADS):
        handle.sync_pwrite(numbers(10_000, index), str(tmp_path / str(index)))

    def work(index: int) -> set[int]:
        target = torch.empty(10_000, dtype=torch.int32)
        if locked:
            target = handle.new_cpu_locked_tensor(10_000, target)
        counts = set()
        for _ in range(50):
            target.fill_(-1)
            counts.add(handle.sync_pread(target, str(tmp_path / str(index))))
            assert torch.equal(target, numbers(10_000, index))
            counts.add(handle.sync_pwrite(target, str(tmp_path / f"{index}.out")))
        return counts

    assert together(work) == [{1}] * THREADS


def test_mixed_calls_of_threads_count_each_operation_once_and_return_when_it_is_over(tmp_path: Path) -> None:
    handle = deepnvme.aio_handle(4096, 4, False, True, 2)
    rounds = 60

    def work(index: int) -> int:
        counted = 0
        source, target = numbers(3000, index), torch.empty(3000, dtype=torch.int32)
        for turn in range(rounds):
            file = str(tmp_path / f"{index}.{turn % 3}")
            source.fill_(index * 1000 + turn)
            assert handle.async_pwrite(source, file) == 0
            counted += handle.wait() if turn % 2 else handle.sync_pwrite(numbers(10, 0), file + ".other")
            assert handle.async_pread(target.zero_(), file) == 0
            counted += handle.wait()
            assert torch.equal(target, source)  # also when another thread's call took it
        return counted

    assert sum(together(work)) == THREADS * (rounds * 2 + rounds // 2)
    assert handle.wait() == 0


def test_a_failure_reaches_its_submitter_also_when_another_thread_took_it(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"x")
    handle = deepnvme.aio_handle()
    handle.async_pread(torch.zeros(10), str(tmp_path / "short"))
    with ThreadPoolExecutor(1) as other:
        with pytest.raises(EOFError):
            other.submit(handle.wait).result()
        assert other.submit(handle.wait).result() == 0
    with pytest.raises(EOFError):
        handle.wait()
    assert handle.wait() == 0


# ---- what deadlocks there ----


@pytest.mark.parametrize("shared", [True, False], ids=["one handle", "two handles"])
def test_the_first_writes_of_two_threads_do_not_deadlock(tmp_path: Path, shared: bool) -> None:
    code = """
    import sys, threading, torch
    from headrace import deepnvme
    handles = [deepnvme.aio_handle() for _ in range(2)]
    if sys.argv[2] == "True":
        handles[1] = handles[0]
    gate = threading.Barrier(2)
    def write(index):
        gate.wait()
        handles[index].sync_pwrite(torch.zeros(5000), f"{sys.argv[1]}/{index}")
    threads = [threading.Thread(target=write, args=(index,)) for index in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    """
    done = support.run_script(code, str(tmp_path), str(shared))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_waiter_and_a_submitter_of_temporaries_do_not_deadlock(tmp_path: Path) -> None:
    handle = deepnvme.aio_handle(65536, 8, False, True, 2)
    submitted, over = 500, threading.Event()

    def wait() -> int:
        counted = 0
        while not over.is_set():
            counted += handle.wait()
        return counted + handle.wait()

    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(wait)
        for index in range(submitted):
            handle.async_pwrite(torch.full((20_000,), index), str(tmp_path / str(index % 7)))
        over.set()
        assert waiter.result() == submitted


@pytest.mark.parametrize("method", ["pread", "pwrite", "sync_pread", "sync_pwrite"])
def test_blocking_calls_let_other_threads_run(tmp_path: Path, method: str) -> None:
    handle = deepnvme.aio_handle()
    file = str(tmp_path / "file")
    data = handle.new_cpu_locked_tensor(1 << 20, BYTE)
    handle.sync_pwrite(data, file)
    ran = threading.Event()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # nothing but a call that gives way lets the other thread in
    try:
        threading.Thread(target=ran.set).start()
        for _ in range(32):
            arguments = (False, False) if method in ("pread", "pwrite") else ()
            assert getattr(handle, method)(data, file, *arguments) == 1
            if ran.is_set():
                break
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)


def test_reads_beside_making_and_freeing_locked_tensors(tmp_path: Path) -> None:
    handle = deepnvme.aio_handle(4096, 8)
    file = str(tmp_path / "file")
    handle.sync_pwrite(numbers(20_000, 5), file)

    def work(index: int) -> None:
        for _ in range(60):
            if index % 2:
                target = torch.zeros(20_000, dtype=torch.int32)
                assert handle.sync_pread(target, file) == 1
                assert torch.equal(target, numbers(20_000, 5))
            else:
                tensor = handle.new_cpu_locked_tensor(5000, BYTE)
                assert handle.is_pinned(tensor[10:])
                assert handle.free_cpu_locked_tensor(tensor)

    together(work)


def test_ctrl_c_ends_a_wait_and_the_next_one_counts_everything(frozen: support.FrozenFileSystem) -> None:
    handle = deepnvme.aio_handle()
    file = str(frozen.folder / "file")
    handle.sync_pwrite(torch.zeros(1000), file)
    frozen.freeze()
    handle.async_pwrite(torch.ones(1000), file)
    handle.async_pwrite(torch.ones(1000), file, 4000)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    frozen.thaw()
    assert handle.wait() == 2


# ---- a thousand times ----


def test_descriptors_and_memory_stay_flat_over_a_thousand_operations(tmp_path: Path) -> None:
    handle = deepnvme.aio_handle(4096, 8, False, True, 2)
    file, missing = str(tmp_path / "file"), str(tmp_path / "missing" / "file")
    data = numbers(2000, 0)
    target = torch.empty_like(data)

    def one_of_each() -> None:
        handle.async_pwrite(data, file)
        handle.async_pread(target, file)
        with pytest.raises(OSError):
            handle.async_pwrite(data, missing)
        with pytest.raises(EOFError):
            handle.sync_pread(target, file, 1)
        fd = os.open(file, os.O_WRONLY)
        handle.async_pwrite(data, fd)
        os.close(fd)
        assert handle.wait() == 1
        os.unlink(file)

    for _ in range(50):
        one_of_each()
    gc.collect()  # what earlier tests left
    descriptors, resident = sorted(support.open_descriptors()), support.status_bytes("VmRSS")
    for _ in range(1000):
        one_of_each()
    gc.collect()
    assert sorted(support.open_descriptors()) == descriptors
    assert not any(str(tmp_path) in name for name in descriptors)
    assert support.status_bytes("VmRSS") < resident + (16 << 20)


def test_three_hundred_handles_live_together(tmp_path: Path) -> None:
    data = numbers(2000, 3)
    handles = []
    for index in range(300):
        handles.append(deepnvme.aio_handle(queue_depth=128))
        assert handles[-1].sync_pwrite(data, str(tmp_path / str(index % 5))) == 1
    assert all(handle.wait() == 0 for handle in handles)


# ---- ends ----

ENDINGS = {"return": "", "exit": "sys.exit(3)", "raise": "raise KeyError('the end')", "drop": "del handle"}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_that_ends_with_operations_pending_ends_as_it_wants(tmp_path: Path, ending: str) -> None:
    code = f"""
    import sys, torch
    from headrace import deepnvme
    handle = deepnvme.aio_handle()
    data = handle.new_cpu_locked_tensor(8 << 20, torch.empty(0, dtype=torch.uint8)).fill_(9)
    for index in range(4):
        handle.async_pwrite(data, sys.argv[1] + str(index))
        handle.async_pread(torch.empty(4 << 20, dtype=torch.uint8), sys.argv[1] + str(index))
    {ENDINGS[ending]}
    """
    done = support.run_script(code, str(tmp_path / "file"))
    assert done.returncode == {"exit": 3, "raise": 1}.get(ending, 0), done.stderr
    assert done.stdout == ""
    assert ("KeyError" in done.stderr) == (ending == "raise")
    for index in range(4):  # writes are finished, not dropped
        assert (tmp_path / f"file{index}").read_bytes() == b"\x09" * (8 << 20)


def test_a_dropped_handle_finishes_its_writes(tmp_path: Path) -> None:
    handle = deepnvme.aio_handle()
    for index in range(20):
        handle.async_pwrite(torch.full((100_000,), 5, dtype=torch.uint8), str(tmp_path / str(index)))
    del handle
    for index in range(20):
        assert (tmp_path / str(index)).read_bytes() == b"\x05" * 100_000


def test_a_failed_write_of_a_dropped_handle_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with support.loop_ext4(tmp_path, megabytes=16) as folder:
        handle = deepnvme.aio_handle()
        handle.async_pwrite(handle.new_cpu_locked_tensor(32 << 20, BYTE), str(folder / "file"))
        del handle
        support.wait_until(lambda: "ENOSPC" in caplog.text)


def test_a_forked_child_is_told_and_makes_its_own(tmp_path: Path) -> None:
    handle = deepnvme.aio_handle()
    locked = handle.new_cpu_locked_tensor(100, BYTE)
    handle.async_pwrite(locked, str(tmp_path / "parent"))

    def child() -> None:
        started = time.monotonic()
        with pytest.raises(headrace.ClosedError):
            handle.sync_pread(torch.zeros(4), str(tmp_path / "parent"))
        own = deepnvme.aio_handle()
        assert own.is_pinned(locked)
        assert own.sync_pwrite(locked, str(tmp_path / "child")) == 1
        assert time.monotonic() - started < 5

    support.in_child(child)
    assert handle.wait() == 1
    assert (tmp_path / "child").read_bytes() == (tmp_path / "parent").read_bytes() == bytes(100)
