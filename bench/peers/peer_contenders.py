# SPDX-License-Identifier: Apache-2.0
"""The others inside a Python process: DeepSpeed's aio_handle, headrace under its names, plain Python."""

from __future__ import annotations

import importlib
import importlib.metadata
import mmap
import os
import sys
from typing import Any

from contender import Call, MemoryContender, Skip, Turn
from headrace_contender import load_torch


class AioHandle(MemoryContender):
    """Options: module, "deepspeed" or "headrace.deepnvme"; arguments, of aio_handle; pinned."""

    def load(self) -> None:
        self._torch = load_torch()
        self._versions: dict[str, Any] = {"torch": self._torch.__version__}
        module = self.options["module"]
        try:
            if module == "deepspeed":
                self._module = load_deepspeed()
                self._versions["deepspeed"] = importlib.metadata.version("deepspeed")
            else:
                self._module = importlib.import_module(module)
        except ImportError as error:
            raise Skip(f"{module} cannot be imported: {error}") from error

    def take_memory(self, size: int) -> memoryview:
        self._handle = self._module.aio_handle(*self.options["arguments"])
        kind = self._torch.uint8
        if self.options["pinned"]:
            self._tensor = self._handle.new_cpu_locked_tensor(size, self._torch.empty(0, dtype=kind))
        else:
            self._tensor = self._torch.empty(size, dtype=kind)
        return memoryview(self._tensor.numpy())

    def facts(self) -> dict[str, Any]:
        return {**self._versions, "pointer_modulo_4096": self._tensor.data_ptr() % 4096}

    def call(self, turn: Turn) -> Call:
        tensor = self._tensor if turn.size == self.view.nbytes else self._tensor[: turn.size]

        def read() -> None:
            must_be_one(self._handle.sync_pread(tensor, turn.path, 0))

        def write() -> None:
            must_be_one(self._handle.sync_pwrite(tensor, turn.path, 0))
            sync_data(turn.path)

        return Call({"read": read, "write": write}[turn.operation])


class PlainPython(MemoryContender):
    """Unbuffered Python file objects, through the page cache, into touched memory on small pages."""

    def take_memory(self, size: int) -> memoryview:
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def facts(self) -> dict[str, Any]:
        return {"python": sys.version.split()[0]}

    def call(self, turn: Turn) -> Call:
        view = self.view[: turn.size]

        def read() -> None:
            with open(turn.path, "rb", buffering=0) as file:
                done = 0
                while done < turn.size:
                    count = file.readinto(view[done:])
                    if not count:
                        raise OSError(f"{turn.path} ended after {done} bytes")
                    done += count

        def write() -> None:
            with open(turn.path, "r+b", buffering=0) as file:
                done = 0
                while done < turn.size:
                    done += file.write(view[done:])
                os.fdatasync(file.fileno())

        return Call({"read": read, "write": write}[turn.operation])


def load_deepspeed() -> Any:
    """DeepSpeed's compiled module; it is compiled at first use, into the environment that runs this."""
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", os.path.join(sys.prefix, "torch_extensions"))
    os.environ["PATH"] = os.path.join(sys.prefix, "bin") + os.pathsep + os.environ.get("PATH", "")
    os.environ["DS_ACCELERATOR"] = "cpu"
    builders = importlib.import_module("deepspeed.ops.op_builder")
    try:
        return builders.AsyncIOBuilder().load()
    except Exception as error:
        raise Skip(f"DeepSpeed cannot build async_io (it needs libaio-dev, g++, ninja): {error}") from error


def must_be_one(answer: int) -> None:
    """aio_handle answers how many operations it finished."""
    if answer != 1:
        raise OSError(f"aio_handle answered {answer} where one operation was asked for")


def sync_data(path: str) -> None:
    """Makes what was written to a file durable."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)
