# SPDX-License-Identifier: Apache-2.0
# Made by python/src/make_stub.py; a test compares.
# fmt: off
# ruff: noqa
"""The compiled part of headrace. Import headrace instead."""

from collections.abc import Callable, Generator, Iterable
import types
from typing import Any, Literal, overload

import headrace._errors
import headrace._types


__version__: str

class Buffer:
    """
    Zero-filled bytes that the disk likes: 2 MiB aligned, on huge pages where the system gives them,
    locked where allowed.

    ``nbytes``: the size. ``pages``: "transparent" (ask for transparent huge pages), "reserved" (pages
    of the hugetlb pool; MemoryError when it is empty) or "small". ``lock=False`` leaves the pages
    unlocked. Pages are taken when first touched.

    One dimension of bytes: memoryview(), numpy.frombuffer(), torch.from_dlpack() and the like see the
    memory without a copy, and it is freed when the last of them is gone. For arrays of a shape and
    dtype see headrace.torch.empty and headrace.numpy.empty. Raises MemoryError when the memory is not
    to be had.
    """

    def __init__(self, nbytes: int, *, pages: headrace._types.Pages = 'transparent', lock: bool = True) -> None: ...

    @property
    def nbytes(self) -> int:
        """The size in bytes."""

    @property
    def address(self) -> int:
        """The address of the first byte."""

    @property
    def locked(self) -> bool:
        """True when its pages cannot be swapped out."""

    @property
    def pages(self) -> str:
        """"transparent", "reserved" or "small": what was asked for and granted."""

    @property
    def huge_bytes(self) -> int:
        """Bytes that sit on huge pages now, as the kernel's page tables say."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

    @overload
    def __getitem__(self, key: int) -> int: ...

    @overload
    def __getitem__(self, key: slice) -> memoryview: ...

    def __setitem__(self, key: int | slice, value: Any) -> None: ...

    def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    def __repr__(self) -> str: ...

class Route:
    """
    Which way the bytes of a finished transfer went. All counts are of payload bytes.

    ``direct_bytes`` + ``buffered_bytes`` is what was moved: past the page cache, or through it. Of
    these, ``staged_bytes`` were copied through the library's own buffers and ``registered_bytes`` used
    memory registered with the ring.
    """

    @property
    def engine(self) -> str:
        """"uring", "aio", "posix" or "null"."""

    @property
    def direct(self) -> bool:
        """True when bytes went past the page cache."""

    @property
    def registered(self) -> bool:
        """True when memory registered with the ring was used."""

    @property
    def direct_bytes(self) -> int: ...

    @property
    def buffered_bytes(self) -> int: ...

    @property
    def staged_bytes(self) -> int: ...

    @property
    def registered_bytes(self) -> int: ...

    @property
    def pages(self) -> str:
        """
        Of the caller's memory: "unknown", "small", "transparent" or "reserved".
        """

    @property
    def why(self) -> str:
        """Why not a faster route; empty when there was none."""

    def __repr__(self) -> str: ...

class EngineInfo:
    """Whether an engine works here, found by trying."""

    @property
    def name(self) -> str: ...

    @property
    def available(self) -> bool: ...

    @property
    def reason(self) -> str:
        """Why it does not work, or which of its features do."""

    def __repr__(self) -> str: ...

def probe_engines() -> list[EngineInfo]:
    """Builds and drops each engine once and says what happened."""

class File:
    """
    An open file that many requests share: opened once, its alignments asked of the system once.

    ``path``: str, bytes or PathLike, or an int descriptor, which is duplicated and whose flags and
    position stay as they are (a writable descriptor with O_APPEND is refused). ``mode``, for paths:
    "read" (must exist; the default), "update" (created if missing, never truncated), "create" (must not
    exist), "truncate" (created if missing, cut to zero length now).

    Any thread may use it. ``close()`` drops this object's share; transfers under way keep theirs.
    Raises TransferError: FileNotFoundError, PermissionError, IsADirectoryError and so on are among its
    subclasses.
    """

    def __init__(self, path: headrace._types.Path | int, mode: headrace._types.FileMode | None = None) -> None: ...

    @property
    def name(self) -> headrace._types.Path | int:
        """What the file was opened by."""

    @property
    def mode(self) -> str:
        """The mode it was opened with; "descriptor" for a descriptor."""

    @property
    def closed(self) -> bool:
        """True after close()."""

    @property
    def size(self) -> int:
        """The length now, in bytes; a block device's capacity."""

    @property
    def direct_alignment(self) -> tuple[int, int]:
        """
        Alignment that direct I/O needs of memory, and of offset and length, in bytes; zeros where it is refused.
        """

    def close(self) -> None:
        """Drops this object's share of the file. Safe to call twice."""

    def __enter__(self) -> File: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def __repr__(self) -> str: ...

class AtomicFile:
    """
    A file that appears whole or not at all; made by Handle.replace(path, size=...).

    Pass it as the file of writes. Leaving its ``with`` block waits for them, then sets the exact size,
    syncs, renames over ``path`` and syncs the folder; an exception in the block, or a write that
    failed, removes the temporary file and leaves the old one. Writes beyond ``size`` raise ValueError.
    Ranges that were never written hold zeros.
    """

    @property
    def path(self) -> headrace._types.Path:
        """The final name, as it was given."""

    @property
    def size(self) -> int:
        """The exact final length in bytes."""

    @property
    def temporary_path(self) -> str:
        """The name the bytes are written under."""

    def resize(self, size: int) -> None:
        """
        Changes the exact final length. Space for a larger one is taken now: a full disk is reported here, and the old
        length stays. What was written beyond a smaller one is cut off.
        """

    def commit(self) -> None:
        """
        Waits for the writes into this file, then makes it appear under its final name. What leaving the block does.
        """

    def discard(self) -> None:
        """
        Aborts the writes into this file and removes it. What leaving the block by an exception does. Safe to call twice.
        """

    def __enter__(self) -> AtomicFile: ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: types.TracebackType | None) -> None: ...

    def __repr__(self) -> str: ...

class Transfer:
    """
    The future of one read or write, with the methods of concurrent.futures.Future; it can also be
    awaited.

    Any thread may use it. It keeps the memory of its request, and the object that owns it, until it is
    done; dropping it neither stops the work nor frees that memory. It is done only when the kernel
    holds nothing of it any more.
    """

    def result(self, timeout: float | None = None) -> int:
        """
        Waits until done, at most ``timeout`` seconds, and returns the number of bytes moved.

        Raises TransferError or one of its subclasses when the request failed (EndOfFileError when the file
        ended early and ``partial`` was not set), TimeoutError when time ran out (the work goes on),
        concurrent.futures.CancelledError after cancel().
        """

    def exception(self, timeout: float | None = None) -> headrace._errors.TransferError | None:
        """
        Waits as result() does and returns the exception that it would raise, or None.
        """

    def done(self) -> bool:
        """True when nothing of it is left to do, however it ended."""

    def running(self) -> bool:
        """True while some block of it was sent and it is not done."""

    def cancel(self) -> bool:
        """
        Prevents it, if nothing of it was sent yet: True then. False means that it runs or is done.
        """

    def cancelled(self) -> bool:
        """True after a cancel() that took effect."""

    def abort(self) -> None:
        """
        Stops what was not sent yet. result() raises AbortedError once the rest has come back.
        """

    def add_done_callback(self, fn: Callable[[Transfer], object]) -> None:
        """
        Calls ``fn(transfer)`` on the library's dispatcher thread when the transfer is done, soon if it is
        already.

        Callbacks of all handles share that thread: they should be short. What one raises goes to the logger
        "headrace".
        """

    @property
    def route(self) -> Route | None:
        """
        None until done; then which way the bytes went, and why not a faster one.
        """

    @property
    def operation(self) -> str:
        """"read" or "write"."""

    @property
    def filename(self) -> headrace._types.Path | int:
        """The file, as the request named it."""

    @property
    def offset(self) -> int:
        """The first byte of the range in the file."""

    @property
    def length(self) -> int:
        """The number of bytes asked for."""

    def __await__(self) -> Generator[object, None, int]: ...

    def __repr__(self) -> str: ...

class Handle:
    """
    Workers, staging memory and limits; accepts requests from any thread.

    engine         "auto" (uring, else aio, else posix), the default, or one of "uring", "aio", "posix",
                   "null" by name: UnavailableError says why that one cannot work here.
    workers        I/O threads, 1 to 64. Default: one per processor, at most 4.
    block_bytes    The largest piece of one system call, a multiple of 4096. Default: 4 MiB.
    queue_depth    Blocks in flight per worker, 1 to 4096.
    staging_bytes  The upper bound of staging memory of the whole handle. Default: at most 256 MiB.
    requests_max   Unfinished requests, 65,536 by default. Beyond it a submission waits, or with
                   when_full="raise" raises LimitError.
    direct         Direct I/O: "auto", "never", or "required" (an error where it does not work).
    registered     Buffers registered with the ring: the same words, "auto" by default.
    staging_pages  "transparent" huge pages, "reserved" ones of the hugetlb pool, or "small".
    profile        A file that ``headrace tune --output`` wrote: its engine, workers, block_bytes,
                   queue_depth and registered take the place of the defaults. What is given here wins.
    profile_for    Which of its settings: the best for "read", for "write", or for "both", the default.

    Leaving a ``with`` block closes it. A handle that is dropped aborts its reads and finishes its
    writes, as the interpreter's exit does. In a forked child it raises ClosedError: make a new one
    there.
    """

    def __init__(self, *, engine: headrace._types.Engine | None = None, workers: int | None = None, block_bytes: int | None = None, queue_depth: int | None = None, staging_bytes: int | None = None, requests_max: int | None = None, when_full: Literal['wait', 'raise'] = 'wait', direct: headrace._types.Ladder = 'auto', registered: headrace._types.Ladder | None = None, staging_pages: headrace._types.Pages = 'transparent', profile: headrace._types.Path | None = None, profile_for: Literal['read', 'write', 'both'] | None = None) -> None: ...

    def close(self, timeout: float | None = None) -> None:
        """
        Takes no more requests, waits for the unfinished ones, frees everything. Safe to call twice.

        Raises the first error of a write whose result nobody asked for, or TimeoutError when a device does
        not answer within ``timeout`` seconds: then what the kernel holds stays alive, and close() can be
        called again.
        """

    @property
    def closed(self) -> bool:
        """True after close()."""

    def stats(self) -> dict[str, Any]:
        """
        Counts since the handle was made: requests, failed, bytes, unfinished_requests, errors_by_errno, and
        for "reads" and "writes" the same with blocks, bytes_by_route and latency_ns (percentiles from
        submission to done).
        """

    def facts(self) -> dict[str, Any]:
        """
        What the handle settled on: engine, engine_detail, workers, block_bytes, queue_depth, staging_bytes and so on.
        """

    def __enter__(self) -> Handle: ...

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: types.TracebackType | None) -> None:
        """
        Closes the handle. When an exception is in flight, unfinished reads are aborted, and a failure of
        the closing is added to that exception as a note instead of raised.
        """

    def __repr__(self) -> str: ...

    def read(self, file: headrace._types.FileLike, into: headrace._types.Memory, *, offset: int = 0, partial: bool = False, priority: int = 0, copy: headrace._types.Copy = 'auto', cache: headrace._types.Cache = 'auto') -> Transfer:
        """
        Starts to read into ``into`` from ``file`` at ``offset``, as many bytes as ``into`` has, and returns
        a Transfer.

        file      str, bytes, PathLike, an int descriptor, headrace.File or headrace.AtomicFile. Opened now.
        into      A contiguous torch tensor, numpy array, writable buffer or DLPack tensor in host memory,
                  of any shape and dtype; or a list of these, filled in order. Kept alive, and unresizable,
                  until the transfer is done. Its old values are lost from now on.
        offset    Bytes from the start of the file; no alignment is needed.
        partial   True: a file that ends early gives a smaller count. False: it raises EndOfFileError.
        priority  -128 to 127; higher goes first, block by block.
        copy      "auto"; "always" through staging memory; "never".
        cache     "auto": from the page cache when half or more of a large request sits there; "use";
                  "bypass".

        Raises TransferError (FileNotFoundError, PermissionError, ... are among its subclasses) when the
        file cannot be opened, ValueError or TypeError for memory that cannot be filled: read-only, not
        contiguous, on a GPU, meta, sparse, overlapping.
        """

    def write(self, file: headrace._types.FileLike, data: headrace._types.Memory, *, offset: int = 0, mode: headrace._types.WriteMode = 'update', durability: headrace._types.Durability | None = None, priority: int = 0, copy: headrace._types.Copy = 'auto') -> Transfer:
        """
        Starts to write all bytes of ``data`` to ``file`` at ``offset`` and returns a Transfer.

        data        A torch tensor, numpy array, buffer or DLPack tensor in host memory; or a list of these,
                    written in order. One that is not contiguous is copied now, its values in row-major
                    order. Do not change it until the transfer is done.
        mode        "update" (create if missing, never truncate; the default), "create" (must not exist),
                    "truncate", or "replace": the whole file, atomically (temporary name, exact size, sync,
                    rename, sync of the folder).
        durability  "none", "data" (fdatasync before the transfer is done), or None: "data" for
                    mode="replace", else "none".

        file, offset, priority and copy as in read(). Bytes outside the range are never touched. A write
        whose result nobody asks for and that fails raises when the handle closes.
        """

    def read_many(self, items: Iterable[headrace._types.Item], *, partial: bool = False, priority: int = 0, copy: headrace._types.Copy = 'auto', cache: headrace._types.Cache = 'auto') -> list[Transfer]:
        """
        Starts many reads at once. ``items``: (file, into) or (file, into, offset). Returns a Transfer for
        each, in their order.

        Each file is opened once, and ranges of one file that touch each other move together. All items are
        checked before any is started: an exception means that nothing was. Targets that overlap raise
        ValueError. Options as in read().
        """

    def write_many(self, items: Iterable[headrace._types.Item], *, mode: headrace._types.FileWriteMode = 'update', durability: headrace._types.Durability | None = None, priority: int = 0, copy: headrace._types.Copy = 'auto') -> list[Transfer]:
        """
        Starts many writes at once. ``items``: (file, data) or (file, data, offset). Returns a Transfer for
        each, in their order.

        Each file is opened once; with durability="data" it is synced once. Options as in write(), except
        mode="replace": write into the file that replace() returns.
        """

    def replace(self, path: headrace._types.Path, *, size: int, durability: headrace._types.Durability = 'data') -> AtomicFile:
        """
        A file of exactly ``size`` bytes to write into, which takes the place of ``path`` when its ``with``
        block is left.

        See AtomicFile. A full disk is reported here: the space is reserved now.
        """

def wait_for(transfers: Iterable[Transfer], return_when: str, timeout: float | None) -> None:
    """
    Returns when the condition holds or the timeout has passed. headrace.wait tells which are done.
    """

class Completions:
    """The order in which transfers finish, for headrace.as_completed."""

    def __init__(self, transfers: Iterable[Transfer]) -> None: ...

    def next(self, timeout: float | None) -> int:
        """The position of the transfer that finished next. Raises TimeoutError."""

def checkpoint_files(path: headrace._types.Path) -> tuple[list[str], dict[str, str] | None]:
    """
    The files of the checkpoint that a file, a folder, an index or the common start of their names stands for; from an index the file of each tensor.
    """

def save_torch_zip(handle: Handle, path: headrace._types.Path, pickle: bytes, storages: list[tuple[int, int]], durability: str, alignment_bytes: int, device_copy: headrace._types.DeviceCopy | None = None) -> int:
    """
    Writes a zip container of torch.save; storages by address and length. Addresses from 2^63 on are numbers of ``device_copy``: address and length of staging memory, and copy(address, length, offset in the staging memory). The length of the file.
    """

def save_torch_legacy(handle: Handle, path: headrace._types.Path, pickle: bytes, storages: list[tuple[str, int, int, int]], durability: str, device_copy: headrace._types.DeviceCopy | None = None) -> int:
    """
    Writes torch's legacy container; storages by key, element count, address and length.
    """

def save_safetensors(handle: Handle, path: headrace._types.Path, tensors: list[tuple[str, str, list[int], int, int]], metadata: list[tuple[str, str]] | None, durability: str, device_copy: headrace._types.DeviceCopy | None = None) -> int:
    """
    Writes a safetensors file; tensors by name, dtype, shape, address and length.
    """

def save_safetensors_state(handle: Handle, path: headrace._types.Path, state: object, metadata: list[tuple[str, str]] | None, durability: str) -> int | None:
    """
    The same for a dict of plain CPU tensors; None, and nothing done, for anything else.
    """

def pickle_state(object: object) -> tuple[bytes, list[Any]] | None:
    """
    The pickle of plain containers and tensors, and their storages; None for anything else.
    """

class CheckpointFile:
    """A checkpoint file opened for reading: see headrace.open."""

    def __init__(self, handle: Handle, path: headrace._types.Path, verify: str = "auto") -> None: ...

    @property
    def name(self) -> headrace._types.Path: ...

    @property
    def format(self) -> str: ...

    @property
    def file_bytes(self) -> int: ...

    def fileno(self) -> int:
        """The descriptor of the open file, which stays this object's."""

    @property
    def little_endian(self) -> bool: ...

    @property
    def metadata(self) -> dict[str, str] | None: ...

    @property
    def pickle(self) -> bytes: ...

    def storages(self) -> list[tuple[str, int, int, int | None, str | None, str | None]]:
        """(key, offset, bytes, crc32, dtype, location) each."""

    def tensors(self) -> list[tuple[str, str, list[int], list[int], int, int, int, bool, bool, str]]:
        """
        (name, dtype, shape, strides, storage, offset in it, bytes, contiguous, requires_grad, conj and neg) each.
        """

    def globals(self, known: bool) -> list[str]:
        """
        The names that the pickle refers to: those that weights_only admits, or the others.
        """

    def load(self, handle: Handle, storages: list[int], verify: str) -> tuple[list[tuple[int, int, int]], list[Buffer]]:
        """
        Whole storages into new memory: (index of the memory, offset in it, bytes) each, and the memories.
        """

    def read(self, handle: Handle, reads: list[tuple[int, int, int, int]], verify: str) -> None:
        """
        Ranges of storages into memory: (storage, offset in it, address, bytes) each.
        """

    def replay(self, table: dict[str, object], storages: list[object], build: object, empty_like: object) -> object:
        """
        Makes the pickle's object from the globals in `table`; `build` applies a state to an object, `empty_like` gives a storage without bytes the dtype of a reference to it.
        """

def report_json(folders: tuple[headrace._types.Path, ...]) -> str:
    """For headrace.report: everything but what Python itself knows."""
