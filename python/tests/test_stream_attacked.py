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
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
import headrace.torch
from headrace._stream import AtomicStream
from headrace.fastpersist import FastFileWriter, FastFileWriterConfig
from support import in_child, loop_ext4, mounted, need_tool, run_script, status_bytes

MIB = 1 << 20
OLD = b"the old checkpoint"


def fast(path: Path, pinned: Any = None) -> FastFileWriter:
    return FastFileWriter(path, FastFileWriterConfig(None, pinned))


MAKERS = [headrace.torch.writer, fast]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that stands there already."""
    (tmp_path / "a").write_bytes(OLD)
    return tmp_path / "a"


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
    try:
        for i in range(40):
            path.write_bytes(OLD)
            try:
                signal.setitimer(signal.ITIMER_REAL, randomly.random() * 0.1 + 0.0001)
                with headrace.torch.writer(path, durability="none") as file:
                    torch.save(obj, file, _use_new_zipfile_serialization=i % 2 == 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
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


# ---- space, memory, time ----


def test_space_taken_ahead_is_not_missed_by_others(tmp_path: Path) -> None:
    with loop_ext4(tmp_path, megabytes=60) as folder:
        one, two = headrace.torch.writer(folder / "a"), headrace.torch.writer(folder / "b")
        one.write(bytes(16 * MIB))
        two.write(bytes(16 * MIB))
        (folder / "log").write_bytes(bytes(100_000))
        one.close()
        two.close()


def test_memory_is_not_taken_twice_on_tmpfs(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "-o", "size=400m", "tmpfs", folder=tmp_path / "tm") as folder:
        file = headrace.torch.writer(folder / "a")
        for _ in range(9):
            file.write(bytes(16 * MIB))
        assert file._stream._file is not None
        used = os.stat(file._stream._file.temporary_path).st_blocks * 512
        file.discard()
        assert used <= (9 * 16 + 64) * MIB, used >> 20


def test_other_threads_run_while_the_file_system_hangs_in_resize(tmp_path: Path) -> None:
    need_tool("fsfreeze")
    with loop_ext4(tmp_path, megabytes=64) as folder, headrace.Handle() as handle:
        file = handle.replace(folder / "a", size=0)
        subprocess.run(["fsfreeze", "--freeze", str(folder)], check=True)
        # If this process hangs, the file system thaws all the same.
        rescue = subprocess.Popen(["sh", "-c", f"sleep 20; fsfreeze --unfreeze '{folder}' 2>/dev/null"])
        try:
            thread = threading.Thread(target=file.resize, args=(MIB,))
            thread.start()
            time.sleep(0.2)  # by now it hangs; this thread runs
            assert thread.is_alive()
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(folder)], check=False)
            rescue.kill()
            rescue.wait()
        thread.join()
        assert file.size == MIB
        file.discard()


def test_finished_writes_are_not_kept_until_the_end(tmp_path: Path) -> None:
    writer = fast(tmp_path / "a", torch.empty(4096, dtype=torch.uint8))
    data = bytes(MIB)
    for _ in range(5):
        writer.write(data)
    before = status_bytes("VmRSS")
    for _ in range(40):
        writer.write(data)
    grown = status_bytes("VmRSS") - before
    writer.close()
    assert grown < 10 * MIB, grown >> 20


@pytest.mark.slow
@pytest.mark.watchdog(150)
def test_temporaries_of_killed_writers_go_at_the_next_one(tmp_path: Path) -> None:
    code = """
    import os, signal, sys, headrace.torch
    file = headrace.torch.writer(sys.argv[1])
    file.write(bytes(17 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
    """
    run_script(code, str(tmp_path / "a"))
    assert len(os.listdir(tmp_path)) == 1
    time.sleep(62)
    with headrace.torch.writer(tmp_path / "a") as file:
        file.write(b"x")
    fast(tmp_path / "b").close()
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


# ---- arguments ----


@pytest.mark.parametrize("make", MAKERS)
def test_an_empty_array_may_be_written(path: Path, make: Callable[..., Any]) -> None:
    numpy = pytest.importorskip("numpy")
    writer = make(path)
    assert writer.write(numpy.empty((0, 3))) == 0
    writer.close()
    assert path.read_bytes() == b""


def test_odd_arguments_are_refused(path: Path) -> None:
    with headrace.torch.reader(path) as source, pytest.raises(ValueError, match="whence"):
        source.raw.seek(0, 3)
    with headrace.torch.writer(path) as file:
        with pytest.raises(ValueError, match="whence"):
            file.seek(5, 7)
        with pytest.raises(TypeError):
            file.seek(5.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="closed"):
        file.tell()
    for call in (headrace.torch.writer, headrace.torch.reader):
        with pytest.raises(TypeError, match=r"headrace\.Handle or None, not object"):
            call(path, handle=object())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["shrunk", "csr", "conj", "neg", "nested", "fake"])
def test_a_pinned_tensor_without_plain_memory_is_refused(path: Path, kind: str) -> None:
    make = {
        "shrunk": "torch.zeros(5000); x.untyped_storage().resize_(100)",
        "csr": "torch.zeros(50, 100).to_sparse_csr()",
        "conj": "torch.zeros(5000, dtype=torch.complex64).conj()",
        "neg": "torch._neg_view(torch.zeros(5000))",
        "nested": "torch.nested.nested_tensor([torch.zeros(5000)])",
        "fake": "torch._subclasses.FakeTensorMode().from_tensor(torch.zeros(5000))",
    }[kind]
    code = f"""
    import sys, warnings; warnings.simplefilter("ignore")
    import torch
    from headrace.fastpersist import *
    x = {make}
    try:
        FastFileWriter(sys.argv[1], FastFileWriterConfig(None, x))
    except ValueError as error:
        print(error)
    """
    done = run_script(code, str(path))
    assert done.stdout.startswith("pinned_tensor must be"), done.stderr[-300:]
    assert path.read_bytes() == OLD


# ---- reading ----


def test_an_interrupted_read_writes_into_no_freed_memory(tmp_path: Path) -> None:
    """io.BufferedReader hands on a bare pointer, which keeps nothing alive."""
    file = tmp_path / "big"
    file.write_bytes(b"\xaa" * (256 * MIB))
    code = """
    import os, signal, sys, time
    import headrace.torch
    path = sys.argv[1]
    fd = os.open(path, os.O_RDONLY); os.fsync(fd); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    class Stop(Exception): pass
    def stop(*_): raise Stop
    signal.signal(signal.SIGALRM, stop)
    file = headrace.torch.reader(path)
    file.read(1)
    size = os.path.getsize(path) - (8 << 20)
    target = bytearray(size)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        file.readinto(target)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        pass
    del target
    other = bytearray(size)  # most likely where the first one was
    time.sleep(0.5)
    print(other.count(0) == size)
    """
    done = run_script(code, str(file))
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr[-500:]


def test_an_interrupt_of_torch_load_is_one(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(64 * MIB)}, tmp_path / "big.pt")
    code = """
    import os, signal, sys, time, torch, headrace.torch
    path = sys.argv[1]
    fd = os.open(path, os.O_RDONLY); os.fsync(fd); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # as Ctrl-C
    signal.setitimer(signal.ITIMER_REAL, 0.04)
    try:
        with headrace.torch.reader(path) as file:
            torch.load(file)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("too fast")
    except KeyboardInterrupt:
        print("KeyboardInterrupt")
    """
    done = run_script(code, str(tmp_path / "big.pt"))
    assert done.returncode == 0, done.stderr[-300:]
    assert done.stdout in ("KeyboardInterrupt\n", "too fast\n")


def test_an_io_error_in_torch_load_is_named(tmp_path: Path) -> None:
    """torch answers a failed readinto with read(), and CPython with a ValueError about a closed file."""
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(5 * MIB)}, path)
    code = textwrap.dedent("""
        import sys, torch, headrace, headrace.torch
        handle = headrace.Handle(engine="posix", direct="never")
        try:
            with headrace.torch.reader(sys.argv[1], handle=handle) as file:
                torch.load(file)
        except BaseException as error:
            print(type(error).__name__, error)
        """)
    calls = "pread64,preadv,preadv2"
    trace = ["-f", "-qq", "-o", "/dev/null", "-P", str(path), "-e", f"trace={calls}"]
    inject = ["-e", f"inject={calls}:error=EIO:when=4+"]
    command = [need_tool("strace"), *trace, *inject, sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("TransferError"), done.stdout
    assert "EIO" in done.stdout


def test_reading_all_takes_few_requests(tmp_path: Path) -> None:
    data = os.urandom(MIB) * 32 + b"end"
    (tmp_path / "a").write_bytes(data)
    with headrace.Handle() as handle:
        with headrace.torch.reader(tmp_path / "a", handle=handle) as file:
            assert file.read(5) + file.read() == data
        assert handle.stats()["reads"]["requests"] < 10


def test_a_good_file_under_a_fake_mode_gives_fake_tensors(tmp_path: Path) -> None:
    from torch._subclasses import FakeTensorMode

    headrace.save({"w": torch.ones(2, 3)}, tmp_path / "a.pt")
    with FakeTensorMode():
        loaded = headrace.load(tmp_path / "a.pt")
        assert loaded["w"].shape == (2, 3)
        assert type(loaded["w"]).__name__ == "FakeTensor"
        with pytest.raises(ValueError, match="FakeTensorMode"):
            headrace.load(tmp_path / "a.pt", verify="require")
