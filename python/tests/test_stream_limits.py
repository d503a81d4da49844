# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""What an adversary found in the file objects and FastPersist's writers besides torn files: space and memory
that they take, threads they hold up, odd arguments, and reads that go on after an interrupt."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
import headrace.torch
from stream_support import MAKERS, MIB, OLD, fast
from stream_support import path_of_an_old_file as path_of_an_old_file
from support import loop_ext4, mounted, need_tool, run_script, status_bytes

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
    with headrace.torch.reader(path) as file:  # later there are no imports to interrupt
        torch.load(file)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
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
