# SPDX-License-Identifier: Apache-2.0
"""The same buffer moved by torch, DeepSpeed and fio, as far as they are installed. Nothing here is needed
by headrace."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.memory import drop_cache
from .measure import Run

if TYPE_CHECKING:
    from .run import Case


class Peer:
    """One library. ``measure`` adds its runs to the case, or a note that says why it could not."""

    name = ""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def measure(self, case: Case, folder: Path) -> None:
        if self.notes:
            return
        try:
            self.move(case, folder)
        except Exception as error:  # whatever a peer does wrong, the table goes on
            self.notes.append(f"left out: {type(error).__name__}: {error}".splitlines()[0])

    def move(self, case: Case, folder: Path) -> None:
        raise NotImplementedError


class Torch(Peer):
    """torch.save and torch.load of one tensor, as most checkpoints are made."""

    name = "torch.save, torch.load"

    def move(self, case: Case, folder: Path) -> None:
        import torch

        tensor = torch.frombuffer(case.sources[0][1], dtype=torch.uint8)
        path = folder / "torch.pt"

        def save() -> str:
            with open(path, "wb") as file:
                torch.save(tensor, file)
                file.flush()
                os.fsync(file.fileno())
            return "page cache, fsync"

        def load() -> str:
            loaded.append(torch.load(path, weights_only=True))
            return "page cache"

        loaded: list[Any] = []
        path.unlink(missing_ok=True)
        os.sync()
        case.measure("write", self.name, save)
        case.measure("read", self.name, load, drop_cache(path))
        if not torch.equal(loaded.pop(), tensor):
            raise ValueError("torch.load gave other bytes")
        path.unlink()


class DeepSpeed(Peer):
    """aio_handle with its defaults, pinned tensors."""

    name = "DeepSpeed aio_handle"

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None
        self._tensor: Any = None

    def move(self, case: Case, folder: Path) -> None:
        import torch

        if self._handle is None:
            from deepspeed.ops.op_builder import AsyncIOBuilder

            with contextlib.redirect_stdout(io.StringIO()):
                self._handle = AsyncIOBuilder().load(verbose=False).aio_handle()
            self._tensor = self._handle.new_cpu_locked_tensor(
                case.size_bytes, torch.empty(0, dtype=torch.uint8)
            )
            self._tensor.copy_(torch.frombuffer(case.sources[0][1], dtype=torch.uint8))
        path = folder / "deepspeed"

        def write() -> str:
            self._handle.sync_pwrite(self._tensor, str(path))
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
            return "libaio, direct, pinned, fsync"

        def read() -> str:
            self._handle.sync_pread(self._tensor, str(path))
            return "libaio, direct, pinned"

        path.unlink(missing_ok=True)
        os.sync()
        case.measure("write", self.name, write)
        case.measure("read", self.name, read, drop_cache(path))
        path.unlink()


class Fio(Peer):
    """io_uring, direct, 4 MiB x 32, without reserved huge pages, which need root: headrace may be faster. Its
    own clock, so that starting it does not count."""

    name = "fio, ordinary pages"

    def move(self, case: Case, folder: Path) -> None:
        path = folder / "fio"
        for operation, option in (("write", "--end_fsync=1"), ("read", "--invalidate=1")):
            command = [
                "fio", "--name=demo", "--filename=fio", f"--size={case.size_bytes}", f"--rw={operation}",
                option,
                "--ioengine=io_uring", "--direct=1", "--bs=4M", "--iodepth=32", "--output-format=json",
            ]  # fmt: skip
            cached = drop_cache(path) if operation == "read" else None
            # In the folder: fio takes a colon in --filename as the end of one name.
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
            job = json.loads(done.stdout)["jobs"][0]
            seconds = job[operation]["runtime"] / 1000
            cpu = seconds * (job["usr_cpu"] + job["sys_cpu"]) / 100
            case.runs.setdefault((operation, self.name), []).append(
                Run(seconds, cpu, "io_uring, direct", cached)
            )
        path.unlink()


def installed() -> list[Peer]:
    """Those that can be tried here."""
    found: list[Peer] = []
    if importlib.util.find_spec("torch"):
        found.append(Torch())
        if importlib.util.find_spec("deepspeed"):
            found.append(DeepSpeed())
    if shutil.which("fio"):
        found.append(Fio())
    return found
