# SPDX-License-Identifier: Apache-2.0
"""aio_handle: DeepSpeed's asynchronous I/O handle, on a headrace.Handle."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, overload

from headrace import Handle

from . import _arguments, _locked, _staging
from ._order import Use
from ._pending import Operation, Pending

if TYPE_CHECKING:
    from collections.abc import Hashable

    import torch

    from headrace._types import Path

# The limits of headrace.Handle; the getters repeat what the constructor was given.
_WORKERS_MAX = 64
_DEPTH_MAX = 4096
_BLOCK_MULTIPLE = 4096
_BLOCK_MAX = 1 << 30
# What it takes to keep a fast device busy. Settings below that were chosen for other machinery than this.
_BLOCK_MIN = 4 << 20
_IN_FLIGHT_MIN = 128 << 20
_DEEPSPEED_ALIGNMENT = 512


def make_handle(block_size: int, queue_depth: int, intra_op_parallelism: int) -> Handle:
    """A headrace.Handle of these values, raised to what a device needs and cut to what a handle takes."""
    workers = min(intra_op_parallelism, _WORKERS_MAX)
    rounded = -(-block_size // _BLOCK_MULTIPLE) * _BLOCK_MULTIPLE
    block_bytes = max(_BLOCK_MIN, min(rounded, _BLOCK_MAX))
    depth = max(queue_depth, -(-_IN_FLIGHT_MIN // (block_bytes * workers)))
    return Handle(workers=workers, block_bytes=block_bytes, queue_depth=min(depth, _DEPTH_MAX))


class aio_handle:  # noqa: N801  DeepSpeed's name
    """Reads and writes of CPU tensors, by the names and argument orders of DeepSpeed's ``async_io`` op.

    block_size            Bytes of one system call: at least 4 MiB, at most 1 GiB, in steps of 4096, are used.
    queue_depth           Blocks in flight per thread: at least what makes 128 MiB, at most 4096 are used.
    single_submit         Kept for its getter: submissions are always batched.
    overlap_events        Kept for its getter: the queue is always kept full.
    intra_op_parallelism  I/O threads, at most 64.

    Buffers are torch tensors of any shape, dtype, size and alignment; ``file_offset`` is in bytes and need
    not be aligned. Those of new_cpu_locked_tensor move without a copy, other CPU tensors through bounded
    staging memory, tensors on other devices through a host copy of their size. A write never cuts a file. Do
    not use a buffer before wait().

    Every failure is an exception: headrace.TransferError (an OSError; FileNotFoundError, EOFError and so on
    are among its subclasses), ValueError or TypeError. It comes from the call where the request could not be
    started, else from the call that waits for it, which raises only when all the operations it waits for are
    over. The handle stays usable.

    Any thread may use a handle. A handle that is dropped aborts its reads and finishes its writes. After a
    fork it raises headrace.ClosedError in the child.
    """

    def __init__(
        self,
        block_size: int = 1048576,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        self._block_size = _arguments.count("block_size", block_size, 1)
        self._queue_depth = _arguments.count("queue_depth", queue_depth, 1)
        self._single_submit = _arguments.flag("single_submit", single_submit)
        self._overlap_events = _arguments.flag("overlap_events", overlap_events)
        self._intra_op_parallelism = _arguments.count("intra_op_parallelism", intra_op_parallelism, 1)
        self._handle = make_handle(self._block_size, self._queue_depth, self._intra_op_parallelism)
        self._pending = Pending()

    def get_block_size(self) -> int:
        """The constructor's block_size."""
        return self._block_size

    def get_queue_depth(self) -> int:
        """The constructor's queue_depth."""
        return self._queue_depth

    def get_single_submit(self) -> bool:
        """The constructor's single_submit."""
        return self._single_submit

    def get_overlap_events(self) -> bool:
        """The constructor's overlap_events."""
        return self._overlap_events

    def get_intra_op_parallelism(self) -> int:
        """The constructor's intra_op_parallelism."""
        return self._intra_op_parallelism

    def get_alignment(self) -> int:
        """512 x intra_op_parallelism, which callers written for DeepSpeed pad to. Nothing here needs it."""
        return _DEEPSPEED_ALIGNMENT * self._intra_op_parallelism

    def read(self, buffer: torch.Tensor, filename: Path, validate: bool, file_offset: int = 0) -> int:
        """Fills ``buffer`` from the file at ``file_offset`` and returns 0.

        Leaves pending operations to wait().
        """
        self._start_read(buffer, filename, validate, file_offset).complete()
        return 0

    def write(self, buffer: torch.Tensor, filename: Path, validate: bool, file_offset: int = 0) -> int:
        """Writes ``buffer`` to the file at ``file_offset`` and returns 0.

        Leaves pending operations to wait().
        """
        self._start_write(buffer, _arguments.path(filename), validate, file_offset).complete()
        return 0

    def pread(self, buffer: torch.Tensor, filename: Path, validate: bool, *rest: Any, **named: Any) -> int:
        """pread(buffer, filename, validate, async, file_offset=0): fills ``buffer`` from the file.

        ``async`` true: returns 0 at once; wait() completes it. False: waits for it and for everything pending
        on the handle, and returns how many operations that were. ``async`` is a word of Python's own: pass it
        by position or as ``**{"async": True}``. ``validate``: reads the range again and raises TransferError
        (EIO) if it differs. EndOfFileError if the file ends before the buffer is full.
        """
        is_async, file_offset = _arguments.take_async("pread", rest, named)
        return self._finish(self._start_read(buffer, filename, validate, file_offset, is_async), is_async)

    def pwrite(self, buffer: torch.Tensor, filename: Path, validate: bool, *rest: Any, **named: Any) -> int:
        """pwrite(buffer, filename, validate, async, file_offset=0): writes ``buffer`` to the file.

        The file is created if it is missing and never cut. ``async`` and ``validate`` as in pread().
        """
        is_async, file_offset = _arguments.take_async("pwrite", rest, named)
        path = _arguments.path(filename)
        return self._finish(self._start_write(buffer, path, validate, file_offset, is_async), is_async)

    def sync_pread(self, buffer: torch.Tensor, filename: Path, file_offset: int = 0) -> int:
        """pread() without validate and async:

        1, and one more for each operation that was pending on the handle.
        """
        return self._finish(self._start_read(buffer, filename, False, file_offset), False)

    def sync_pwrite(self, buffer: torch.Tensor, filename: Path, file_offset: int = 0) -> int:
        """pwrite() without validate and async:

        1, and one more for each operation that was pending on the handle.
        """
        return self._finish(self._start_write(buffer, _arguments.path(filename), False, file_offset), False)

    def async_pread(self, buffer: torch.Tensor, filename: Path, file_offset: int = 0) -> int:
        """Starts to fill ``buffer`` from the file at ``file_offset`` and returns 0; wait() completes it."""
        return self._finish(self._start_read(buffer, filename, False, file_offset, True), True)

    @overload
    def async_pwrite(self, buffer: torch.Tensor, filename: Path, file_offset: int = 0) -> int: ...
    @overload
    def async_pwrite(self, buffer: torch.Tensor, filename: int, file_offset: int = 0) -> int: ...
    @overload
    def async_pwrite(self, buffer: torch.Tensor, *, fd: int, file_offset: int = 0) -> int: ...
    def async_pwrite(
        self,
        buffer: torch.Tensor,
        filename: Path | int | None = None,
        file_offset: int = 0,
        *,
        fd: int | None = None,
    ) -> int:
        """Starts to write ``buffer`` at ``file_offset`` and returns 0; wait() completes it.

        The second argument is a file name, or a writable descriptor (also by the name ``fd``). The descriptor
        stays the caller's, who may close it as soon as this returns; its flags and position stay as they are.
        """
        if (filename is None) == (fd is None):
            raise TypeError("async_pwrite() takes one of filename and fd")
        if fd is None and isinstance(filename, (str, bytes, os.PathLike)):
            target: Path | int = filename
        else:
            target = _arguments.count("fd", filename if fd is None else fd, 0)
        return self._finish(self._start_write(buffer, target, False, file_offset, True), True)

    def wait(self) -> int:
        """Waits until the handle is idle; returns how many operations that completes, 0 if none was pending.

        Operations, not bytes, and those of every thread; each is counted by one call only.
        """
        return self._pending.drain()

    def new_cpu_locked_tensor(self, num_elem: int, example_tenosr: torch.Tensor) -> torch.Tensor:
        """A 1-D CPU tensor of ``num_elem`` elements of the example's dtype, on huge pages, zeros at first.

        Locked if RLIMIT_MEMLOCK allows; if not, one warning goes to the logger "headrace" and the tensor is
        as good for I/O. The memory is freed when the last view of it dies. MemoryError when it is not to be
        had.
        """
        return _locked.new_tensor(num_elem, example_tenosr, "example_tenosr")

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        """True if ``tensor`` starts where one of new_cpu_locked_tensor does; that one is no longer pinned.

        False for any other tensor, and the second time. The memory goes when the last view of it dies, so
        none dangles.
        """
        return _locked.free_tensor("tensor", tensor)

    def is_pinned(self, buffer: torch.Tensor) -> bool:
        """True if all of ``buffer`` lies in one tensor of new_cpu_locked_tensor, or torch pinned it."""
        return _locked.is_pinned(buffer)

    def _finish(self, operation: Operation, is_async: bool) -> int:
        return 0 if is_async else self._pending.drain(operation)

    def _start_read(
        self, buffer: object, filename: object, validate: object, file_offset: object, is_async: bool = False
    ) -> Operation:
        tensor = _arguments.tensor("buffer", buffer)
        path = _arguments.path(filename)
        offset = _arguments.count("file_offset", file_offset, 0)
        compare = _arguments.flag("validate", validate)
        uses = self._uses(tensor, path, offset, True, is_async)
        target, copy_back = _staging.read_target(tensor)
        transfer = self._handle.read(path, target, offset=offset)
        after = _staging.after(
            copy_back, _staging.Comparison(self._handle, target, path, offset) if compare else None
        )
        return self._started(Operation(transfer, after), uses, is_async)

    def _start_write(
        self,
        buffer: object,
        target: Path | int,
        validate: object,
        file_offset: object,
        is_async: bool = False,
    ) -> Operation:
        tensor = _arguments.tensor("buffer", buffer)
        offset = _arguments.count("file_offset", file_offset, 0)
        compare = _arguments.flag("validate", validate)
        uses = self._uses(tensor, target, offset, False, is_async)
        source = _staging.write_source(tensor)
        transfer = self._handle.write(target, source, offset=offset)
        after = _staging.Comparison(self._handle, source, target, offset) if compare else None
        if is_async and len(uses) < 2:  # the file is new: what it is was not known before
            uses = self._uses(tensor, target, offset, False, is_async, ended=True)
        return self._started(Operation(transfer, after), uses, is_async)

    def _started(self, operation: Operation, uses: list[Use], is_async: bool) -> Operation:
        if is_async:
            self._pending.add(operation, uses)
        return operation

    def _uses(
        self,
        tensor: torch.Tensor,
        file: Path | int,
        offset: int,
        is_read: bool,
        is_async: bool,
        ended: bool = False,
    ) -> list[Use]:
        """What the operation touches, after unfinished ones that it may not overtake have ended."""
        pending = bool(self._pending)
        if not pending and not is_async:
            return []
        length = _arguments.nbytes(tensor)
        start, end = _staging.extent(tensor)
        uses = [Use("memory", start, end, is_read)]
        identity = _identity(file)
        if identity is not None:
            uses.append(Use(identity, offset, offset + length, not is_read))
        if pending and not ended:
            self._pending.let_conflicts_end(uses)
        return uses


def _identity(file: Path | int) -> Hashable | None:
    """What tells one file from another; None if it is not there. The request itself says why not."""
    try:
        status = os.stat(file)
    except (OSError, ValueError, OverflowError):
        return None
    return status.st_dev, status.st_ino
