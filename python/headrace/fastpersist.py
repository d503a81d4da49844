# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's FastPersist writers by their own names, on headrace: what ``deepspeed.io`` has.

    from headrace import deepnvme
    from headrace.fastpersist import FastFileWriter, FastFileWriterConfig

    handle = deepnvme.aio_handle(block_size=8 << 20, queue_depth=8)
    buffer = handle.new_cpu_locked_tensor(64 << 20, torch.empty(0, dtype=torch.uint8))
    writer = FastFileWriter("model.pt", FastFileWriterConfig(handle, buffer))
    torch.save(model.state_dict(), writer)
    writer.close()

Constructor arguments, methods and statistics are those of DeepSpeed 0.19.8. Any torch will do; one whose
``_legacy_save`` has the guide's hook hands all storages over at once. docs/fastpersist.md lists the
differences: most of all, a file appears when it is whole, whatever stood there before. headrace.save is
simpler, and faster.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ._core import Handle
from ._stream import AtomicStream, bytes_of, copier, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    import torch

    from ._core import Transfer
    from ._types import OneMemory, Path, SupportsBuffer

__all__ = ["FastFileWriter", "FastFileWriterConfig", "MockFileWriter", "PyFileWriter"]

_INVALID_FD = -1
_SIZE_BYTES = 8  # what stands before each storage in torch's legacy container
_REGIONS_MAX = 4096  # of one request
_PARTS = 4  # of the staging memory: one is filled while others are written
_STAGING_MIN_BYTES = 4096


class _FileWriter:
    """What the writers share: the statistics, by DeepSpeed's keys."""

    _KEYS: tuple[str, ...] = ("close", "fileno", "flush", "write", "bytes", "write_secs", "write_GB/s")

    def __init__(self, file_path: Path) -> None:
        self._file_path = file_path
        self._stats: dict[str, Any] = dict.fromkeys(self._KEYS, 0)

    def file_path(self) -> Path:
        """The path, as it was given."""
        return self._file_path

    def fileno(self) -> int:
        """-1: torch is to hand its bytes to write()."""
        self._stats["fileno"] += 1
        return _INVALID_FD

    def _count_write(self, nbytes: int, seconds: float = 0.0) -> int:
        self._stats["write"] += 1
        self._stats["bytes"] += nbytes
        self._stats["write_secs"] += seconds
        return nbytes

    def _rate(self, rate: str, nbytes: str, seconds: str) -> None:
        if self._stats[seconds] > 0:
            self._stats[rate] = self._stats[nbytes] / self._stats[seconds] / (1 << 30)

    def _dump_state(self) -> None:
        """Prints the statistics. Rates are in GiB/s, as in DeepSpeed."""
        self._rate("write_GB/s", "bytes", "write_secs")
        self._stats["path"] = self._file_path
        print(f"stats = {self._stats}")


class MockFileWriter(_FileWriter):
    """Counts what is written, and leaves a file of 0 bytes."""

    _KEYS = (*_FileWriter._KEYS, "save_storage", "save_storage_bytes")

    def __init__(self, file_path: Path) -> None:
        super().__init__(file_path)
        self._file = open(file_path, "wb")  # noqa: SIM115  close() closes it

    def write(self, buffer: SupportsBuffer) -> int:
        """The number of bytes in ``buffer``."""
        return self._count_write(memoryview(buffer).nbytes)

    def save_torch_storage_object_list(self, storage_obj_list: Iterable[Any], save_size: bool) -> int:
        """The number of bytes that the storages would take, and 8 more for each with ``save_size``."""
        total = 0
        for storage, _ in map(_storage_and_dtype, storage_obj_list):
            self._stats["save_storage"] += 1
            self._stats["save_storage_bytes"] += storage.nbytes()
            if save_size:
                total += self._count_write(_SIZE_BYTES)
            total += self._count_write(storage.nbytes())
        return total

    def flush(self) -> None:
        """Counts."""
        self._stats["flush"] += 1

    def close(self) -> None:
        """Closes the empty file."""
        self._stats["close"] += 1
        self._file.close()


class PyFileWriter(_FileWriter):
    """Plain Python's buffered file: neither durable nor atomic. To compare with."""

    def __init__(self, file_path: Path) -> None:
        super().__init__(file_path)
        self._file = open(file_path, "wb")  # noqa: SIM115  close() closes it

    def write(self, buffer: SupportsBuffer) -> int:
        """Writes all of ``buffer``."""
        start = time.perf_counter()
        self._file.write(buffer)
        return self._count_write(memoryview(buffer).nbytes, time.perf_counter() - start)

    def flush(self) -> None:
        """Hands what Python collected to the system."""
        self._stats["flush"] += 1
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._stats["close"] += 1
        self._file.close()


@dataclass
class FastFileWriterConfig:
    """What a FastFileWriter works with.

    dnvme_handle          A headrace.deepnvme.aio_handle or headrace.Handle to write with. Any other object,
                          and None: the handle that the process shares.
    pinned_tensor         A contiguous CPU tensor in which small writes and tensors of other devices are
                          collected, of any size and dtype; None: 64 MiB of the writer's own.
    double_buffer         Fill one part of it while others are written.
    num_parallel_writers  1: writing parts of one file by several ranks is not supported yet.
    writer_rank           0.
    global_rank           Kept.
    """

    dnvme_handle: object
    pinned_tensor: torch.Tensor | None
    double_buffer: bool = True
    num_parallel_writers: int = 1
    writer_rank: int = 0
    global_rank: int = 0


class FastFileWriter(_FileWriter):
    """A file for torch.save that is written at device speed, and appears under its name when it is closed.

    close() syncs and renames; until then, and after any failure, an old file of that name stays as it is. A
    writer that is dropped without close() leaves nothing. It is also a context manager, which discards on an
    exception. One thread at a time.

    Raises ValueError for a config that cannot be kept, TransferError (an OSError) from the call that meets a
    failure, at the latest from close().
    """

    _KEYS = (
        *_FileWriter._KEYS,
        "aio_write_secs",
        "aio_bytes",
        "aio_GB/s",
        "slow_bytes",
        "slow_write_secs",
        "fill_buffer_count",
        "fill_buffer_secs",
        "fill_buffer_GB/s",
        "save_storage",
        "save_storage_bytes",
    )

    def __init__(self, file_path: Path, config: FastFileWriterConfig) -> None:
        super().__init__(file_path)
        if config.num_parallel_writers != 1 or config.writer_rank != 0:
            asked = f"num_parallel_writers={config.num_parallel_writers}, writer_rank={config.writer_rank}"
            raise ValueError(
                f"{asked}: one file by several writers is not supported yet. Let one rank write each file"
            )
        memory = _memory_of(config.pinned_tensor)
        if memory is not None and _is_in_use(config.pinned_tensor):
            memory = None  # another writer fills it: this one takes memory of its own
        self._stream = AtomicStream(
            file_path,
            handle=_handle_of(config.dnvme_handle),
            staging=None if memory is None else cut(memory, _PARTS if config.double_buffer else 1),
            on_sent=self._count_sent,
        )
        if memory is not None:
            _in_use[self._stream] = _range_of(config.pinned_tensor)

    def write(self, buffer: SupportsBuffer) -> int:
        """Appends all bytes of ``buffer``, which may change once it returns."""
        start = time.perf_counter()
        view = bytes_of(buffer)
        self._fill(len(view), copier(view))
        return self._count_write(len(view), time.perf_counter() - start)

    def save_torch_storage_object_list(self, storage_obj_list: Iterable[Any], save_size: bool) -> int:
        """Appends storages, each after its number of elements (8 bytes) where ``save_size`` is true.

        ``storage_obj_list``: pairs of torch.UntypedStorage and dtype, or typed storages. Those in host memory
        are written from where they are. Returns the number of bytes appended.
        """
        start = time.perf_counter()
        before = self._stream.tell()
        with self._stream.whole_or_nothing():
            count = self._append_storages(storage_obj_list, save_size)
        appended = self._stream.tell() - before
        self._stats["save_storage"] += count
        self._stats["save_storage_bytes"] += appended
        return self._count_write(appended, time.perf_counter() - start)

    def flush(self) -> None:
        """Counts. What was written becomes durable, and visible, by close()."""
        self._stats["flush"] += 1

    def close(self) -> None:
        """Makes the file appear, durable. Raises if that fails or a write failed. Safe to call twice.

        While an exception that came after the writer was made is being handled, the file is discarded and the
        exception goes on: torch.save may not have come to its end.
        """
        self._stats["close"] += 1
        start = time.perf_counter()
        self._stream.close()
        seconds = time.perf_counter() - start
        self._stats["aio_write_secs"] += seconds
        self._stats["write_secs"] += seconds

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("a file that is being written cannot be copied or pickled")

    def __enter__(self) -> FastFileWriter:
        return self

    def __exit__(self, _: object, exception: BaseException | None, __: object) -> None:
        if exception is None:
            self.close()
        else:
            self._stream.leave(exception)

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self._stream.drop()

    def _dump_state(self) -> None:
        """Prints the statistics. Rates are in GiB/s, as in DeepSpeed."""
        self._rate("aio_GB/s", "aio_bytes", "aio_write_secs")
        self._rate("fill_buffer_GB/s", "aio_bytes", "fill_buffer_secs")
        super()._dump_state()

    def _append_storages(self, storages: Iterable[Any], save_size: bool) -> int:
        """How many there were."""
        regions: list[OneMemory] = []
        pending = count = 0
        for storage, dtype in map(_storage_and_dtype, storages):
            count += 1
            nbytes = storage.nbytes()
            if save_size:
                regions.append((nbytes // dtype.itemsize).to_bytes(_SIZE_BYTES, "little"))
                pending += _SIZE_BYTES
            on_host = storage.device.type == "cpu"
            if on_host and nbytes:
                regions.append(_bytes_of(storage))
                pending += nbytes
            if len(regions) >= _REGIONS_MAX or not on_host:
                self._send_memory(regions, pending)
                regions, pending = [], 0
            if not on_host:
                self._fill(nbytes, _copier(_bytes_of(storage)))
        self._send_memory(regions, pending)
        return count

    def _fill(self, nbytes: int, copy: Callable[[memoryview, int], None]) -> None:
        """Appends ``nbytes`` by copying, and counts what copying took."""
        begin = time.perf_counter()
        copying = 0.0

        def timed_copy(target: memoryview, offset: int) -> None:
            nonlocal copying
            start = time.perf_counter()
            copy(target, offset)
            copying += time.perf_counter() - start
            self._stats["fill_buffer_count"] += 1

        self._stream.fill(nbytes, timed_copy)
        self._stats["fill_buffer_secs"] += copying
        self._stats["aio_write_secs"] += time.perf_counter() - begin - copying

    def _send_memory(self, regions: list[OneMemory], nbytes: int) -> None:
        start = time.perf_counter()
        self._stream.write_memory(regions, nbytes)
        self._stats["aio_write_secs"] += time.perf_counter() - start

    def _count_sent(self, transfer: Transfer) -> None:
        route = transfer.route
        assert route is not None
        self._stats["aio_bytes"] += route.direct_bytes
        self._stats["slow_bytes"] += route.buffered_bytes


class _Stored(NamedTuple):
    storage: torch.UntypedStorage
    dtype: torch.dtype


def _storage_and_dtype(one: Any) -> _Stored:
    """Of what torch hands to save_torch_storage_object_list: a pair, or a typed storage."""
    import torch

    if isinstance(one, torch.TypedStorage):
        return _Stored(one._untyped_storage, one.dtype)
    storage, dtype = one
    return _Stored(storage, dtype)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _copier(source: torch.Tensor) -> Callable[[memoryview, int], None]:
    """Copies bytes of a tensor on any device."""
    import torch

    def copy(target: memoryview, offset: int) -> None:
        torch.frombuffer(target, dtype=torch.uint8).copy_(source[offset : offset + len(target)])

    return copy


def _handle_of(dnvme_handle: object) -> Handle | None:
    """The Handle to write with; None: the one that the process shares."""
    if isinstance(dnvme_handle, Handle):
        return dnvme_handle
    inner = getattr(dnvme_handle, "_handle", None)  # a headrace.deepnvme.aio_handle
    return inner if isinstance(inner, Handle) else None


def _memory_of(pinned: torch.Tensor | None) -> memoryview | None:
    """The bytes of the tensor in which small writes are collected; None: the stream's own."""
    import torch

    if pinned is None:
        return None
    plain = (
        type(pinned) in (torch.Tensor, torch.nn.Parameter)
        and pinned.device.type == "cpu"
        and pinned.layout == torch.strided
        and not (pinned.is_nested or pinned.is_quantized or pinned.is_conj() or pinned.is_neg())
        and pinned.is_contiguous()
        and pinned.untyped_storage().nbytes()
        >= pinned.storage_offset() * pinned.element_size() + pinned.numel() * pinned.element_size()
    )
    if not plain:
        raise ValueError("pinned_tensor must be a contiguous CPU tensor of plain elements, or None")
    if pinned.nbytes < _STAGING_MIN_BYTES:
        raise ValueError(f"pinned_tensor has {pinned.nbytes} bytes; at least {_STAGING_MIN_BYTES} are needed")
    return memoryview(pinned.detach().reshape(-1).view(torch.uint8).numpy())


# The memory that writers which are not closed collect in.
_in_use: weakref.WeakKeyDictionary[AtomicStream, tuple[int, int]] = weakref.WeakKeyDictionary()


def _range_of(pinned: Any) -> tuple[int, int]:
    return pinned.data_ptr(), pinned.data_ptr() + pinned.nbytes


def _is_in_use(pinned: Any) -> bool:
    begin, end = _range_of(pinned)
    return any(b < end and begin < e for stream, (b, e) in list(_in_use.items()) if not stream.closed)
