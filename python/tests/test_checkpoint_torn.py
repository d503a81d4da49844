# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""A checkpoint is the old one or the new one, whole, whatever happens, and nothing is left beside it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import headrace
from checkpoint_support import assert_same, only
from headrace._default import default_handle
from support import (
    FrozenFileSystem,
    as_nobody,
    in_child,
    loop_ext4,
    mounted,
    need_root,
    need_tool,
    open_descriptors,
    run_script,
)
from test_rounds import flat

FORMATS = ["torch", "torch-legacy", "safetensors"]
OLD = {"a": torch.arange(1000)}
MIB = 1 << 20


def large(megabytes: int) -> dict[str, Any]:
    """Names in their order, in which a safetensors file comes back."""
    return {f"w{i:03}": torch.full((MIB,), i, dtype=torch.uint8) for i in range(megabytes)}


def refused(number: int, path: Path, save: Any) -> None:
    """The call raises this errno for this file, and no descriptor stays open."""
    default_handle()
    before = len(open_descriptors())
    with pytest.raises(headrace.TransferError) as caught:
        save()
    assert caught.value.errno == number, caught.value
    assert os.fspath(caught.value.filename) == os.fspath(path)
    assert errno.errorcode[number] in str(caught.value)
    assert len(open_descriptors()) == before


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An ext4 of 24 MiB."""
    with loop_ext4(tmp_path_factory.mktemp("tiny"), megabytes=24) as folder:
        yield folder


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder on disk that any user can reach; the tree of this project may lie in a closed one."""
    folder = Path("/var/tmp") / f"headrace-checkpoints-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("container", FORMATS)
def test_a_full_disk_leaves_the_old_checkpoint(tiny: Path, container: Any) -> None:
    """pytorch #156955: a full disk ended the process."""
    path = tiny / "a.pt"
    headrace.save(OLD, path, format=container)
    names = sorted(os.listdir(tiny))
    for durability in ("data", "none"):
        refused(
            errno.ENOSPC,
            path,
            lambda d=durability: headrace.save(large(40), path, format=container, durability=d),
        )
    with pytest.raises(headrace.TransferError, match=r"needs 4\d+ bytes; \d+ bytes are free"):
        headrace.save(large(40), path, format=container)
    assert_same(OLD, headrace.load(path))
    assert sorted(os.listdir(tiny)) == names
    headrace.save(large(10), path, format=container)
    assert_same(large(10), headrace.load(path))
    path.unlink()


def test_a_small_file_system_in_memory_fills_up_without_harm(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs", folder=tmp_path / "ram") as folder:
        headrace.save(OLD, folder / "a.pt")
        refused(errno.ENOSPC, folder / "a.pt", lambda: headrace.save(large(64), folder / "a.pt"))
        assert_same(OLD, headrace.load(folder / "a.pt"))
        only(folder, "a.pt")


@pytest.mark.parametrize("kind", ["ramfs", "ext4 without extents"])
def test_file_systems_that_cannot_reserve_space_are_written_once(tmp_path: Path, kind: str) -> None:
    """coreweave/tensorizer PR #85: reserving by hand wrote the file twice."""
    with contextlib.ExitStack() as stack:
        if kind == "ramfs":
            folder = stack.enter_context(mounted("-t", "ramfs", "ramfs", folder=tmp_path / "ram"))
        else:
            need_root("mount")
            need_tool("mkfs.ext4")
            image = tmp_path / "image"
            with open(image, "wb") as file:
                file.truncate(64 * MIB)
            subprocess.run(
                ["mkfs.ext4", "-q", "-m0", "-O", "^extent,^64bit,^metadata_csum", image], check=True
            )
            folder = stack.enter_context(mounted("-o", "loop", str(image), folder=tmp_path / "ext"))
        obj = large(16)

        def written() -> int:
            device = os.stat(folder).st_dev
            name = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat"
            return int(Path(name).read_text().split()[6]) * 512 if os.path.exists(name) else 0

        before = written()
        for container in FORMATS:
            headrace.save(obj, folder / "a.pt", format=container)  # type: ignore[arg-type]
            assert_same(obj, headrace.load(folder / "a.pt"))
        assert written() - before < 3 * 16 * MIB * 1.3
        assert_same(obj, headrace.load(folder / "a.pt", mmap=True))
        assert {name for name in os.listdir(folder) if name != "lost+found"} == {"a.pt"}
        if kind != "ramfs":
            refused(errno.ENOSPC, folder / "b.pt", lambda: headrace.save(large(60), folder / "b.pt"))
            assert {name for name in os.listdir(folder) if name != "lost+found"} == {"a.pt"}


@pytest.mark.parametrize("container", FORMATS)
def test_the_file_size_limit_leaves_the_old_checkpoint(tmp_path: Path, container: Any) -> None:
    path = tmp_path / "a.pt"
    headrace.save(OLD, path, format=container)
    obj = large(3)  # here: torch's threads do not outlive a fork

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
        refused(errno.EFBIG, path, lambda: headrace.save(obj, path, format=container))
        headrace.save({"b": torch.ones(5)}, tmp_path / "b.pt", format=container)

    in_child(work)
    assert_same(OLD, headrace.load(path))
    only(tmp_path, "a.pt", "b.pt")


def test_folders_that_cannot_be_written_are_the_systems_errors(open_folder: Path) -> None:
    """Lightning #21800: "saved" into a folder that may not be written."""
    locked = open_folder / "locked"
    locked.mkdir()
    headrace.save(OLD, locked / "old.pt")
    locked.chmod(0o555)
    (open_folder / "file").write_bytes(b"")
    secret = open_folder / "secret.pt"
    headrace.save(OLD, secret)
    secret.chmod(0o600)

    def work() -> None:
        for name in ("new.pt", "old.pt"):
            refused(errno.EACCES, locked / name, lambda n=name: headrace.save(OLD, locked / n))
        with pytest.raises(PermissionError):
            headrace.load(secret)
        headrace.load(locked / "old.pt", mmap=True)
        refused(
            errno.ENOENT, open_folder / "no" / "a.pt", lambda: headrace.save(OLD, open_folder / "no" / "a.pt")
        )
        refused(
            errno.ENOTDIR,
            open_folder / "file" / "a.pt",
            lambda: headrace.save(OLD, open_folder / "file" / "a.pt"),
        )
        refused(errno.EISDIR, locked, lambda: headrace.save(OLD, locked, format="torch"))

    as_nobody(work)
    only(locked, "old.pt")
    only(open_folder, "locked", "file", "secret.pt")


def test_a_read_only_mount_is_erofs(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "tmpfs", folder=tmp_path / "ram") as folder:
        headrace.save(OLD, folder / "a.pt")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        refused(errno.EROFS, folder / "a.pt", lambda: headrace.save(OLD, folder / "a.pt"))
        assert_same(OLD, headrace.load(folder / "a.pt", mmap=True))
        only(folder, "a.pt")


def test_no_descriptor_left_is_emfile(tmp_path: Path) -> None:
    headrace.save(OLD, tmp_path / "a.pt")

    def work() -> None:
        headrace.save(OLD, tmp_path / "b.pt")
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limit = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for call in (
            lambda: headrace.save(OLD, tmp_path / "a.pt"),
            lambda: headrace.load(tmp_path / "a.pt"),
            lambda: headrace.load(tmp_path / "a.pt", mmap=True),
        ):
            with pytest.raises(OSError, match=r"EMFILE|Too many open files"):
                call()
        for descriptor in taken:
            os.close(descriptor)
        assert_same(OLD, headrace.load(tmp_path / "a.pt"))

    in_child(work)
    only(tmp_path, "a.pt", "b.pt")


def test_temporaries_that_may_be_in_use_stay(tmp_path: Path) -> None:
    """Only those go that are a minute old and that nobody has locked; a file's change time cannot be set."""
    fresh = tmp_path / ".headrace-1-0-00000000.tmp"
    fresh.write_bytes(b"x")
    other = tmp_path / ".headrace-notes.txt"
    other.write_bytes(b"x")
    os.utime(fresh, (0, 0))
    headrace.save(OLD, tmp_path / "a.pt")
    only(tmp_path, "a.pt", fresh.name, other.name)


@pytest.mark.slow
@pytest.mark.watchdog(150)
def test_temporaries_of_dead_processes_go_after_a_minute(tmp_path: Path) -> None:
    stale, locked = tmp_path / ".headrace-1-0-00000000.tmp", tmp_path / ".headrace-2-0-00000000.tmp"
    stale.write_bytes(b"x")
    with open(locked, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        young = os.stat(stale).st_ctime
        clock = tmp_path / "clock"
        while True:  # by the file system's own clock
            clock.write_bytes(b"")
            if os.stat(clock).st_ctime > young + 62:
                break
            threading.Event().wait(1)
        clock.unlink()
        headrace.save(OLD, tmp_path / "a.pt")
        only(tmp_path, "a.pt", locked.name)
    headrace.save(OLD, tmp_path / "a.pt")
    only(tmp_path, "a.pt")


SAVER = """
    import sys, torch, headrace
    path, container, durability = sys.argv[1:]
    print("ready", flush=True)
    value = 0
    while True:
        value += 1
        obj = {f"w{i}": torch.full((300_000 + i,), value, dtype=torch.int32) for i in range(5)}
        headrace.save(obj, path, format=container, durability=durability)
"""


def whole(path: Path) -> int:
    """The value that fills all of the file."""
    loaded = headrace.load(path)
    values = {int(value) for tensor in loaded.values() for value in (tensor.min(), tensor.max())}
    assert len(values) == 1, values
    assert [tensor.numel() for tensor in loaded.values()] == [300_000 + i for i in range(5)]
    return values.pop()


@pytest.mark.watchdog(200)
@pytest.mark.parametrize("container", FORMATS)
def test_a_process_killed_while_it_saves_leaves_the_old_file_or_the_new(
    tmp_path: Path, container: str
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
    for _ in range(17):
        process.stdin.write(f"{before}\n")
        process.stdin.flush()
        pid = int(process.stdout.readline())
        threading.Event().wait(randomly.uniform(0, 0.06))
        os.kill(pid, signal.SIGKILL)
        assert process.stdout.readline() == "dead\n"
        value = whole(path)
        assert value >= before
        seen.add(value)
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


def test_saving_over_the_file_that_mapped_tensors_come_from_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    headrace.save({"a": torch.arange(500_000), "b": torch.ones(3)}, path)
    for load in (lambda: headrace.load(path, mmap=True), lambda: torch.load(path, mmap=True)):
        mapped = load()
        mapped["a"][7] = -7
        headrace.save(mapped, path)
        again = headrace.load(path)
        assert_same(mapped, again)
        assert int(again["a"][7]) == -7


@pytest.mark.parametrize("container", FORMATS)
def test_ctrl_c_ends_a_save_and_the_old_file_stays(frozen: FrozenFileSystem, container: str) -> None:
    path = frozen.folder / "a.pt"
    headrace.save(OLD, path, format=container)  # type: ignore[arg-type]
    before = sorted(os.listdir(frozen.folder))
    code = textwrap.dedent(
        """
        import sys, time, torch, headrace
        obj = {"a": torch.zeros(20 << 20, dtype=torch.uint8)}
        handle = headrace.Handle(engine="posix", workers=1, queue_depth=1, block_bytes=1 << 20)
        headrace.save({"a": torch.ones(3)}, sys.argv[1] + ".x", format=sys.argv[2], handle=handle)
        print("ready", flush=True)
        while True:
            try:
                headrace.save(obj, sys.argv[1] + ".x", format=sys.argv[2], handle=handle)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                break
        assert int(headrace.load(sys.argv[1] + ".x")["a"].sum()) in (0, 3)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), container],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    frozen.freeze()  # it gets no further than some step of a save
    os.kill(process.pid, signal.SIGINT)
    frozen.thaw()
    thawed = time.monotonic()
    out, err = process.communicate(timeout=20)
    assert time.monotonic() < thawed + 5, "an interpreter with torch takes a second to end, and loads to look"
    assert out == "interrupted\n", err
    assert process.returncode == 0, err
    (frozen.folder / "a.pt.x").unlink()
    assert sorted(os.listdir(frozen.folder)) == before
    assert_same(OLD, headrace.load(path))


def test_ctrl_c_ends_a_load_that_hangs(tmp_path: Path) -> None:
    code = """
        import os, signal, sys, threading, time, torch, headrace
        path = sys.argv[1]
        headrace.save({"a": torch.zeros(200 << 20, dtype=torch.uint8)}, path, durability="none")
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        try:
            while time.monotonic() < started + 20:
                headrace.load(path)
        except KeyboardInterrupt:
            print(f"{time.monotonic() - started:.1f}")
        headrace.load(path)
    """
    done = run_script(code, str(tmp_path / "a.pt"))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2


@pytest.mark.watchdog(200)
def test_a_hundred_rounds_of_saving_and_loading_leave_nothing_behind(tmp_path: Path) -> None:
    """pytorch #170163: memory grew with every save. Three names in rotation."""
    state = {f"w{i}": torch.randn(1000 * i + 1) for i in range(40)} | {"large": torch.randn(600_000)}
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    damaged = tmp_path / "damaged.pt"
    headrace.save(state, damaged)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)

    def work(round_: int) -> None:
        path = tmp_path / f"step{round_ % 3}.pt"
        container: Any = FORMATS[round_ % 3]
        headrace.save(state, path, format=container, durability="none", handle=handle)
        headrace.load(path, handle=handle)
        headrace.load(path, mmap=True, handle=handle)
        headrace.load(path, into=target, handle=handle)
        with headrace.open(path, handle=handle) as opened:
            opened["large"][5:10]
        with pytest.raises(headrace.FormatError):
            headrace.load(damaged, handle=handle)
        with pytest.raises(FileNotFoundError):
            headrace.save(state, tmp_path / "none" / "a.pt", handle=handle)

    with headrace.Handle(staging_bytes=8 * MIB) as handle:
        flat(tmp_path, work, rounds=100)
    only(tmp_path, "damaged.pt", "step0.pt", "step1.pt", "step2.pt")
