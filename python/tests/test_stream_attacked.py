# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402, PT012
"""What an adversary found in the file objects and FastPersist's writers, each the case of a kind: a file is
the old one or the new one; errors say what happened."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
import headrace.torch
from headrace import _stream
from headrace._stream import AtomicStream
from headrace.fastpersist import FastFileWriter, FastFileWriterConfig
from stream_support import MAKERS, MIB, OLD, fast
from stream_support import path_of_an_old_file as path_of_an_old_file
from support import in_child, need_tool, run_script


class OddError(Exception):
    """copy.copy() of it raises TypeError, as of many exceptions with constructors of their own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


# ---- whatever raises ----


@pytest.mark.parametrize("make", MAKERS)
def test_an_exception_that_cannot_be_copied_leaves_the_old_file(path: Path, make: Callable[..., Any]) -> None:
    file = make(path)
    file.write(b"header")

    def fails(*_: object) -> None:
        raise OddError(1, "timeout")

    with pytest.raises(OddError):
        file._stream.fill(1000, fails)
    with pytest.raises(RuntimeError, match="OddError: 1: timeout"):
        file.close()
    assert path.read_bytes() == OLD


@pytest.mark.parametrize("make", MAKERS)
def test_close_in_a_finally_goes_on_with_the_exception(path: Path, make: Callable[..., Any]) -> None:
    def save() -> None:
        file = make(path)
        try:
            file.write(b"half")
            raise KeyError("mine")
        finally:
            file.close()

    with pytest.raises(KeyError, match="mine"):
        save()
    assert path.read_bytes() == OLD
    try:
        raise ValueError("handled before")
    except ValueError:  # it has nothing to do with this file
        file = make(path)
        file.write(b"new")
        file.close()
    assert path.read_bytes() == b"new"


def test_an_exception_through_a_buffer_around_the_writer_leaves_the_old_file(path: Path) -> None:
    with pytest.raises(KeyError), headrace.torch.writer(path) as file, io.BufferedWriter(file) as buffered:
        buffered.write(b"half")
        raise KeyError("mine")
    assert path.read_bytes() == OLD


def test_dropping_a_buffer_around_the_writer_leaves_the_old_file(path: Path) -> None:
    buffered = io.BufferedWriter(headrace.torch.writer(path))
    buffered.write(b"half")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del buffered
        gc.collect()
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["a"]


def test_a_list_of_storages_that_fails_half_way_is_not_published(path: Path) -> None:
    good = torch.ones(10)
    writer = fast(path)
    writer.write(b"head")
    with pytest.raises(TypeError):
        writer.save_torch_storage_object_list([(good.untyped_storage(), good.dtype)] * 5000 + [None], True)
    with pytest.raises(TypeError):
        writer.close()
    assert path.read_bytes() == OLD


def test_a_generator_of_storages_will_do(path: Path) -> None:
    tensors = [torch.arange(3), torch.arange(4)]
    writer = fast(path)
    writer.save_torch_storage_object_list(((t.untyped_storage(), t.dtype) for t in tensors), False)
    writer.close()
    assert path.read_bytes() == b"".join(t.numpy().tobytes() for t in tensors)


def test_keyboard_interrupt_is_not_replaced_by_an_older_failure(path: Path) -> None:
    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
        with pytest.raises(KeyboardInterrupt), headrace.torch.writer(path) as file:
            with contextlib.suppress(OSError):
                file.write(bytes(20 * MIB))
            raise KeyboardInterrupt

    in_child(work)


def test_interrupts_at_any_time_leave_the_old_file_or_the_new(path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(*_: object) -> None:
        raise StopError

    before = signal.signal(signal.SIGALRM, stop)
    randomly = random.Random(1)
    obj = {str(i): torch.full((200_000,), float(i)) for i in range(30)}
    ended = []

    def save(new: bool) -> None:
        # A function: when `with` is interrupted before it could end the writer, that ends with its last name.
        signal.setitimer(signal.ITIMER_REAL, randomly.random() * 0.1 + 0.0001)
        with headrace.torch.writer(path, durability="none") as file:
            torch.save(obj, file, _use_new_zipfile_serialization=new)
        signal.setitimer(signal.ITIMER_REAL, 0)

    try:
        for i in range(40):
            path.write_bytes(OLD)
            try:
                save(i % 2 == 0)
            except (StopError, RuntimeError, headrace.TransferError):
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert os.listdir(path.parent) == ["a"]
            ended.append(path.read_bytes() == OLD)
            if not ended[-1]:
                again = torch.load(path)
                assert all(torch.equal(again[key], obj[key]) for key in obj)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert any(ended)


@pytest.mark.parametrize(
    "inject",
    [
        "fallocate:error=ENOSPC:when=1",
        "fallocate:error=EOPNOTSUPP",
        "fallocate:error=EINTR:when=1",
        "ftruncate:error=EIO",
        "fdatasync:error=EIO",
        "rename:error=EACCES",
        "fchmod:error=EPERM",
        "flock:error=ENOLCK",
    ],
)
def test_a_failed_system_call_leaves_the_old_file_or_the_new(path: Path, inject: str) -> None:
    code = """
import sys, headrace
from headrace._stream import StreamWriter  # headrace.torch would import torch, under strace
try:
    with StreamWriter(sys.argv[1], "data", headrace.Handle(engine="posix")) as file:
        file.write(b"y" * (20 << 20))
    print("saved")
except headrace.TransferError as error:
    print("failed")
"""
    trace = [
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        f"trace={inject.partition(':')[0]}",
        "-e",
        f"inject={inject}",
    ]
    command = [need_tool("strace"), *trace, sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert os.listdir(path.parent) == ["a"]
    assert done.stdout in ("saved\n", "failed\n"), done.stderr
    assert path.read_bytes() == (b"y" * (20 * MIB) if done.stdout == "saved\n" else OLD)


def test_a_folder_that_cannot_be_synced_is_told_as_such(path: Path) -> None:
    code = """
import sys, headrace
from headrace._stream import StreamWriter
file = StreamWriter(sys.argv[1], "data", headrace.Handle(engine="posix"))
file.write(b"new")
try:
    file.close()
except OSError as error:
    print(error)
"""
    trace = ["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO"]
    command = [need_tool("strace"), *trace, sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert path.read_bytes() == b"new"
    assert "EIO" in done.stdout
    assert "the new file is in place" in done.stdout
    assert str(path) in done.stdout


# ---- whoever shares it ----


def test_two_writers_with_one_pinned_tensor_do_not_mix_their_bytes(tmp_path: Path) -> None:
    config = FastFileWriterConfig(None, torch.empty(MIB, dtype=torch.uint8))
    for _ in range(2):
        a, b = FastFileWriter(tmp_path / "a", config), FastFileWriter(tmp_path / "b", config)
        a.write(b"a" * 1000)
        b.write(b"b" * 1000)
        a.close()
        b.close()
        assert (tmp_path / "a").read_bytes() == b"a" * 1000
        assert (tmp_path / "b").read_bytes() == b"b" * 1000


@pytest.mark.parametrize("make", MAKERS)
def test_writers_cannot_be_copied(path: Path, make: Callable[..., Any]) -> None:
    writer = make(path)
    writer.write(b"new")
    for one in (writer, writer._stream):
        with pytest.raises(TypeError, match="copied or pickled"):
            copy.copy(one)
    writer.close()
    assert path.read_bytes() == b"new"


def test_another_thread_is_refused(path: Path) -> None:
    file = headrace.torch.writer(path)
    inside, leave = threading.Event(), threading.Event()

    def slow(target: memoryview, _: int) -> None:
        inside.set()
        leave.wait(20)
        target[:] = b"a" * len(target)

    thread = threading.Thread(target=lambda: file._stream.fill(10, slow))
    thread.start()
    assert inside.wait(20)
    for call in (lambda: file.write(b"b"), file.close):
        with pytest.raises(RuntimeError, match="another thread"):
            call()
        assert not file.closed
    leave.set()
    thread.join()
    assert path.read_bytes() == OLD
    file.close()
    assert path.read_bytes() == b"a" * 10


@pytest.mark.parametrize("make", MAKERS)
def test_a_forked_child_leaves_the_block_with_its_own_exception(path: Path, make: Callable[..., Any]) -> None:
    code = f"""
    import os, sys, warnings
    warnings.simplefilter("ignore")
    import headrace.torch
    from headrace.fastpersist import FastFileWriter, FastFileWriterConfig
    fast = lambda path: FastFileWriter(path, FastFileWriterConfig(None, None))
    make = {"fast" if make is fast else "headrace.torch.writer"}
    with make(sys.argv[1]) as file:
        file.write(b"parent")
        child = os.fork()
        if child == 0:
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    done = run_script(code, str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_bytes() == b"parent"


@pytest.mark.parametrize(
    "what", ["headrace.torch.writer(p)", "FastFileWriter(p, FastFileWriterConfig(None, None))"]
)
def test_a_writer_open_at_exit_says_so_and_nothing_else(tmp_path: Path, what: str) -> None:
    code = f"""
    import sys, torch, headrace.torch
    from headrace.fastpersist import *
    p = sys.argv[1]
    w = {what}
    w.write(b"x" * 1000)
    w.me = w
    """
    done = run_script(code, str(tmp_path / "a"))
    assert done.returncode == 0
    assert os.listdir(tmp_path) == []
    assert "Error" not in done.stderr, done.stderr


def test_ctrl_c_at_the_start_of_a_write_is_told_and_not_what_torch_makes_of_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    file = headrace.torch.writer(path)
    with pytest.raises(KeyboardInterrupt), file:
        file.write(b"begun")
        monkeypatch.setattr(_stream, "bytes_of", interrupted)
        try:
            file.write(b"more")
        except KeyboardInterrupt:
            raise RuntimeError("unexpected pos 64 vs 0") from None  # as torch's zip writer ends
    monkeypatch.undo()
    # Its destructor may write again, where an exception would end the process.
    assert file.write(b"the directory") == 13
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["a"]


def test_a_handle_closed_under_a_writer_leaves_the_old_file(path: Path) -> None:
    handle = headrace.Handle()
    file = headrace.torch.writer(path, handle=handle)
    file.write(bytes(20 * MIB))
    handle.close()
    with pytest.raises(headrace.ClosedError):
        file.close()
    assert path.read_bytes() == OLD
    assert os.listdir(path.parent) == ["a"]


def test_any_mix_of_writes_memory_and_skips_comes_out_right(tmp_path: Path) -> None:
    randomly, pool = random.Random(7), os.urandom(4 * MIB)
    for _ in range(40):
        part = randomly.choice([512, 4096, 5000, 65536, MIB])
        parts = [memoryview(bytearray(part)) for _ in range(randomly.choice([1, 2, 4, 7]))]
        stream = AtomicStream(tmp_path / "a", staging=parts, durability="none")
        expected = bytearray()
        for _ in range(randomly.randint(0, 20)):
            size = randomly.choice([0, 1, 511, 4095, 4096, 4097, 70000, MIB + 5])
            start = randomly.randint(0, len(pool) - size)
            piece = pool[start : start + size]
            kind = randomly.random()
            if kind < 0.6:
                stream.write(piece)
                expected += piece
            elif kind < 0.85:
                stream.write_memory([piece, b"abc"], size + 3)
                expected += piece + b"abc"
            else:
                stream.skip(size)
                expected += bytes(size)
        stream.commit()
        assert (tmp_path / "a").read_bytes() == expected
