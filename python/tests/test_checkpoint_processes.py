# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""Processes that are killed while they save, that save to one path at once, that read what was just saved."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import headrace
from checkpoint_support import only

FORMATS = ["torch", "torch-legacy", "safetensors"]


def whole(path: Path) -> int:
    """The value that fills all of the file."""
    loaded = headrace.load(path)
    values = {int(value) for tensor in loaded.values() for value in (tensor.min(), tensor.max())}
    assert len(values) == 1, values
    assert [tensor.numel() for tensor in loaded.values()] == [300_000 + i for i in range(5)]
    return values.pop()


@pytest.mark.watchdog(600)
@pytest.mark.parametrize("container", FORMATS)
@pytest.mark.parametrize("kills", [17, pytest.param(170, marks=pytest.mark.slow)])
def test_a_process_killed_while_it_saves_leaves_the_old_file_or_the_new(
    tmp_path: Path, container: str, kills: int
) -> None:
    """Lightning #688, #19970. Processes are made by fork, so that each costs little."""
    path = tmp_path / "a.pt"
    values = {f"w{i}": torch.full((300_000 + i,), 0, dtype=torch.int32) for i in range(5)}
    headrace.save(values, path, format=container)  # type: ignore[arg-type]
    server = textwrap.dedent(
        """
        import os, sys, torch, headrace
        torch.set_num_threads(1)
        path, container = sys.argv[1:]
        state = [torch.empty(300_000 + i, dtype=torch.int32) for i in range(5)]
        for line in sys.stdin:
            child = os.fork()
            if child == 0:
                value = int(line)
                with headrace.Handle(workers=1, staging_bytes=8 << 20) as handle:
                    os.write(1, f"{os.getpid()}\\n".encode())
                    while True:
                        value += 1
                        for tensor in state: tensor.fill_(value)
                        obj = {f"w{i}": tensor for i, tensor in enumerate(state)}
                        headrace.save(obj, path, format=container, handle=handle)
            os.waitpid(child, 0)
            os.write(1, b"dead\\n")
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", server, str(path), container],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    randomly = random.Random(7)
    seen = set()
    before = 0
    patience_s = 0.06  # two or three saves; more on a slow machine, where none would be over before its end
    for _ in range(kills):
        process.stdin.write(f"{before}\n")
        process.stdin.flush()
        pid = int(process.stdout.readline())
        threading.Event().wait(randomly.uniform(0, patience_s))
        os.kill(pid, signal.SIGKILL)
        assert process.stdout.readline() == "dead\n"
        value = whole(path)
        assert value >= before
        seen.add(value)
        patience_s *= 1.5 if value == before else 0.9 if value > before + 4 else 1
        before = value
    process.stdin.close()
    process.wait()
    process.stdout.close()
    assert len(seen) > 5, "the saves never finished: this test looked at nothing"
    left = [name for name in os.listdir(tmp_path) if name != "a.pt"]
    assert all(name.startswith(".headrace-") and name.endswith(".tmp") for name in left)


@pytest.mark.watchdog(200)
@pytest.mark.parametrize("container", FORMATS)
def test_processes_and_threads_that_save_to_one_path_leave_one_of_their_files(
    tmp_path: Path, container: str
) -> None:
    """pytorch #12042: several workers wrote the same path at once."""
    path = tmp_path / "a.pt"
    code = textwrap.dedent(
        """
        import sys, threading, torch, headrace
        torch.set_num_threads(1)
        path, container, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
        def work(mine):
            for i in range(17):
                value = mine * 100 + i
                obj = {f"w{k}": torch.full((30_000 * mine + k,), value, dtype=torch.int32) for k in range(4)}
                headrace.save(obj, path, format=container)
        print("ready", flush=True)
        sys.stdin.readline()
        threads = [threading.Thread(target=work, args=(first + k,)) for k in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), container, str(2 * i + 1)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    headrace.save({f"w{k}": torch.full((30_000 + k,), 100, dtype=torch.int32) for k in range(4)}, path,
                  format=container)  # type: ignore[arg-type]  # fmt: skip
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    looks = 0
    while True:
        running = any(process.poll() is None for process in processes)
        loaded = headrace.load(path, mmap=looks % 2 == 1)
        values = {int(value) for tensor in loaded.values() for value in (tensor.min(), tensor.max())}
        assert len(values) == 1
        mine = values.pop() // 100
        assert [tensor.numel() for tensor in loaded.values()] == [30_000 * mine + k for k in range(4)]
        looks += 1
        if not running:
            break
    for process in processes:
        assert process.wait() == 0
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
    assert looks > 5
    only(tmp_path, "a.pt")


@pytest.mark.watchdog(200)
def test_what_is_saved_is_read_at_once_by_another_process(tmp_path: Path) -> None:
    """DeepSpeed PR #1388: a file that was saved and at once loaded was not whole on some machines."""
    path = tmp_path / "a.pt"
    code = textwrap.dedent(
        """
        import os, sys, torch, headrace
        torch.set_num_threads(1)
        path = sys.argv[1]
        handles = [headrace.Handle(direct=how, workers=1, staging_bytes=4 << 20)
                   for how in ("never", "required")]
        print("ready", flush=True)
        for line in sys.stdin:
            value = int(line)
            with open(path, "rb") as file: plain = file.read()
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
            import mmap
            page = mmap.mmap(-1, (len(plain) + 8191) // 4096 * 4096)
            got = os.readv(descriptor, [page])
            os.close(descriptor)
            assert got == len(plain) and page[:got] == plain, "direct and buffered differ"
            for loaded in (torch.load(path), torch.load(path, mmap=True), headrace.load(path, mmap=True),
                           headrace.load(path), *(headrace.load(path, handle=h) for h in handles)):
                assert len(loaded) == 3
                for tensor in loaded.values():
                    assert tensor.unique().tolist() == [value], (value, tensor)
            print("good", flush=True)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for value in range(100):
        obj = {f"w{i}": torch.full((70_000 * i + value,), value, dtype=torch.int32) for i in (1, 2, 3)}
        headrace.save(obj, path, durability="data" if value % 2 else "none")
        process.stdin.write(f"{value}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "good\n", value
    process.stdin.close()
    assert process.wait() == 0
    process.stdout.close()
