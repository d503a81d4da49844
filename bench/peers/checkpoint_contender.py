# SPDX-License-Identifier: Apache-2.0
"""Contenders that save, load or slice the same tensors, each in its own format; and headrace among them.

Options of all: tensors, as for states.layout_of. Outside the timed part tensors are made and compared.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import states
from contender import Contender, Options, Outcome, Skip, Turn, timed
from headrace_contender import load_headrace, load_torch
from stamps import WrongDataError
from states import Spec, Tensors
from system import own_memory

SLICE_BYTES = 1_000_000
PIECE_BYTES = 8 << 20
PIECES_AT_ONCE = 2
HUGE_PAGE = 2 << 20
_libc = ctypes.CDLL(None)


class CheckpointContender(Contender):
    """What all of them have: torch, the layout, and the file whose bytes the tensors hold."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.specs = states.layout_of(options["tensors"])
        self.source = ""

    def load(self) -> None:
        self.torch = load_torch()

    def facts(self) -> dict[str, Any]:
        return {"torch": self.torch.__version__}

    def open(self) -> None:
        """Makes handles and the like."""

    def prepare(self, size: int, source: str) -> dict[str, Any]:
        """The baseline counts the tensors, which come and go: a peak less it is what lies beside them."""
        if size != states.total(self.specs):
            raise ValueError(f"the scene says {size} bytes and its tensors have {states.total(self.specs)}")
        self.source = source
        baseline, _ = own_memory()
        self.open()
        return {**self.facts(), "baseline_bytes": baseline + size}

    def details(self) -> dict[str, Any]:
        """What is worth keeping of a turn, asked after it."""
        return {}


class Saver(CheckpointContender):
    """Saves a dict of tensors, durably. With the option "keep" it has them in memory from turn to turn."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._state: dict[str, Any] | None = None

    def save(self, state: dict[str, Any], path: str) -> None:
        """Returns when the bytes are on the disk."""
        raise NotImplementedError

    def read_back(self, path: str) -> Tensors:
        """What is in the file, by a reader that is not headrace's."""
        raise NotImplementedError

    def ready(self, _turn: Turn) -> None:
        give_memory_back()
        if self._state is None:
            self._state = states.made(self.torch, self.specs, self.source)

    def run(self, turn: Turn) -> Outcome:
        state = self._state
        assert state is not None
        outcome = timed(lambda: self.save(state, turn.path))
        if not self.options.get("keep"):
            self._state = None
            state.clear()
        states.check(self.torch, self.specs, self.read_back(turn.path), self.source)
        outcome.details = self.details()
        return outcome


class Loader(CheckpointContender):
    """Loads everything; with the option "into", into tensors that are there already."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.into: dict[str, Any] = {}

    def read(self, path: str) -> Tensors:
        """All tensors of the file."""
        raise NotImplementedError

    def release(self) -> None:
        """Frees what the tensors of the last read hung on."""

    def ready(self, _turn: Turn) -> None:
        give_memory_back()
        if self.into:
            for tensor in self.into.values():
                tensor.zero_()  # only a transfer can bring the bytes back
        elif self.options.get("into"):
            self.into = states.new(self.torch, self.specs)

    def run(self, turn: Turn) -> Outcome:
        found: dict[str, Any] = {}

        def work() -> None:
            found.update(self.read(turn.path))
            for name, tensor in self.into.items():
                if found[name] is not tensor:
                    tensor.copy_(found[name])
            states.touch(self.torch, self.into or found)

        outcome = timed(work)
        try:
            states.check(self.torch, self.specs, self.into or found, self.source)
        finally:
            found.clear()
            self.release()
        outcome.details = self.details()
        return outcome


class Slicer(CheckpointContender):
    """Reads 1 MB of rows out of one matrix of a file, another place each time."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._turns = 0

    def cut(self, path: str, name: str, first: int, last: int) -> Any:
        """Those rows, in memory of their own; the file opened and closed."""
        raise NotImplementedError

    def run(self, turn: Turn) -> Outcome:
        self._turns += 1
        matrices = [spec for spec in self.specs if len(spec.shape) == 2 and spec.nbytes >= SLICE_BYTES]
        spec = (matrices or self.specs)[self._turns * 17 % len(matrices or self.specs)]
        row_bytes = spec.nbytes // spec.shape[0]
        rows = min(spec.shape[0], max(1, SLICE_BYTES // row_bytes))
        first = (spec.shape[0] - rows) // 2
        found: dict[str, Any] = {}

        def work() -> None:
            found["slice"] = self.cut(turn.path, spec.name, first, first + rows)
            states.touch(self.torch, found)

        outcome = timed(work)
        self._check(spec, found["slice"], first * row_bytes, rows * row_bytes)
        outcome.details = {**self.details(), "bytes": rows * row_bytes, "tensor": spec.name}
        return outcome

    def _check(self, wanted: Spec, found: Any, start: int, length: int) -> None:
        for spec, expected in states.with_bytes(self.torch, self.specs, self.source):
            if spec == wanted:
                same = states.bytes_of(self.torch, found)
                if not self.torch.equal(same, expected[start : start + length]):
                    raise WrongDataError(f"the slice of {wanted.name} has other bytes")


class HeadraceMixin(CheckpointContender):
    """Option: format, "torch" (default) or "safetensors"."""

    def load(self) -> None:
        super().load()
        self.headrace = load_headrace()

    @property
    def format(self) -> str:
        return str(self.options.get("format", "torch"))

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "version": self.headrace.__version__}

    def details(self) -> dict[str, Any]:
        """Which sums were computed: ISA-L is loaded where the system has it, at the first sum."""
        return {"crc": "isa-l" if "libisal" in Path("/proc/self/maps").read_text() else "libdeflate"}


class HeadraceSaver(HeadraceMixin, Saver):
    """headrace.save with its defaults: made, preallocated, synced, renamed, the folder synced."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._tested = False

    def save(self, state: dict[str, Any], path: str) -> None:
        self.headrace.save(state, path, format=self.format)

    def read_back(self, path: str) -> Tensors:
        if self.format == "safetensors":
            return load_safetensors().load_file(path)
        if not self._tested:  # torch.load does not look at the sums
            with zipfile.ZipFile(path) as archive:
                if wrong := archive.testzip():
                    raise WrongDataError(f"the sum of the record {wrong} is wrong")
            self._tested = True
        return self.torch.load(path, mmap=True, weights_only=True)


class HeadraceLoader(HeadraceMixin, Loader):
    """headrace.load; the sums of a zip container are required. With the option "mmap" the file is mapped."""

    def read(self, path: str) -> Tensors:
        if self.options.get("mmap"):
            return self.headrace.load(path, mmap=True)
        verify = "require" if self.format == "torch" else "auto"
        return self.headrace.load(path, into=self.into or None, verify=verify)


class BareLoop(Loader):
    """What loading cannot do without: new memory on huge pages, filled by direct reads, two at once. No sums.

    The kernel zeroes that memory before the disk writes to it, so this is also what such a machine can do.
    """

    def read(self, path: str) -> Tensors:
        size = os.path.getsize(path)
        whole = mmap.mmap(-1, size + 2 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):
            whole.madvise(mmap.MADV_HUGEPAGE)
        memory = self.torch.frombuffer(whole, dtype=self.torch.uint8)
        start = -memory.data_ptr() % HUGE_PAGE
        view = memoryview(whole)[start:]
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:

            def piece(offset: int) -> None:
                count = os.preadv(file, [view[offset : offset + PIECE_BYTES]], offset)
                if count != min(PIECE_BYTES, size - offset):
                    raise WrongDataError(f"a direct read gave {count} bytes at {offset}")

            with ThreadPoolExecutor(PIECES_AT_ONCE) as pool:
                list(pool.map(piece, range(0, size, PIECE_BYTES)))
        finally:
            os.close(file)
        header_bytes = int.from_bytes(view[:8], "little")
        header = json.loads(bytes(view[8 : 8 + header_bytes]))
        header.pop("__metadata__", None)
        first = start + 8 + header_bytes
        kinds = {"BF16": self.torch.bfloat16, "F32": self.torch.float32}
        return {
            name: memory[first + begin : first + end].view(kinds[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()
            for begin, end in (entry["data_offsets"],)
        }


class HeadraceSlicer(HeadraceMixin, Slicer):
    """headrace.open."""

    def cut(self, path: str, name: str, first: int, last: int) -> Any:
        with self.headrace.open(path) as file:
            return file[name][first:last]


def give_memory_back() -> None:
    """A call must not find the heap of the one before it: most programs load once."""
    _libc.malloc_trim(0)


def load_safetensors() -> Any:
    """The module safetensors.torch."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise Skip(f"safetensors cannot be imported: {error}") from error
    return safetensors.torch
