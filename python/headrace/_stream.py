# SPDX-License-Identifier: Apache-2.0
"""Bytes that come one after another, into a file that appears whole or not at all; and a file to read from.

For programs that write to and read from file objects. One thread at a time.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import io
import os
from typing import TYPE_CHECKING

from ._core import Buffer, File
from ._default import default_handle
from ._errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ._core import AtomicFile, Handle, Transfer
    from ._types import Durability, OneMemory, Path, SupportsBuffer

_PART_BYTES = 16 << 20
_PARTS = 4
_NO_PART = -1  # from the caller's memory
_FIRST_RESERVE_BYTES = 64 << 20
_RESERVE_STEP_MAX_BYTES = 4 << 30


class AtomicStream:
    """Appends to a file whose length is not known beforehand.

    ``staging``: the memory to collect in, each part sent when it is full and filled again when it is
    written; by default 64 MiB on huge pages, taken at the first write. ``on_sent`` is told of every transfer
    that is done.
    """

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "data",
        handle: Handle | None = None,
        staging: Sequence[memoryview] | None = None,
        on_sent: Callable[[Transfer], None] | None = None,
    ) -> None:
        self._handle = handle or default_handle()
        self._file: AtomicFile | None = self._handle.replace(path, size=0, durability=durability)
        self._parts = staging
        self._on_sent = on_sent
        self._under_way: list[tuple[Transfer, int]] = []  # and the part that it is from
        self._part = 0
        self._filled = 0
        self._sent = 0  # bytes of the file that are written or under way
        self._reserved = 0
        self._failure: BaseException | None = None

    @property
    def closed(self) -> bool:
        """True after commit() and discard()."""
        return self._file is None

    def tell(self) -> int:
        """The number of bytes so far."""
        return self._sent + self._filled

    def write(self, data: SupportsBuffer) -> int:
        """Appends a copy of the bytes."""
        view = memoryview(data).cast("B")

        def copy_part(target: memoryview, offset: int) -> None:
            target[:] = view[offset : offset + len(target)]

        return self.fill(len(view), copy_part)

    def fill(self, nbytes: int, copy_part: Callable[[memoryview, int], None]) -> int:
        """Appends ``nbytes``: ``copy_part(target, offset)`` puts those from ``offset`` on into ``target``."""
        with self._whole_or_nothing() as file:
            done = 0
            while done < nbytes:
                part = self._free_part()
                count = min(len(part) - self._filled, nbytes - done)
                copy_part(part[self._filled : self._filled + count], done)
                self._filled += count
                done += count
                if self._filled == len(part):
                    self._send(file)
        return nbytes

    def write_memory(self, memory: Sequence[OneMemory], nbytes: int) -> None:
        """Appends ``nbytes`` of memory in order, without collecting it; waits until it is written."""
        with self._whole_or_nothing() as file:
            self._send(file)
            if nbytes:
                self._reserve(file, self._sent + nbytes)
                self._under_way.append((self._handle.write(file, list(memory), offset=self._sent), _NO_PART))
                self._sent += nbytes
                self._wait(_NO_PART)

    def skip(self, nbytes: int) -> None:
        """Leaves ``nbytes`` zeros."""
        with self._whole_or_nothing() as file:
            self._send(file)
            self._sent += nbytes

    def commit(self) -> None:
        """Makes the file appear, with the durability asked for. Raises again what failed before; does nothing
        when it was done before, and after discard()."""
        if self._failure is not None:
            raise copy.copy(self._failure)
        if self._file is None:
            return
        with self._whole_or_nothing() as file:
            self._send(file)
            file.resize(self._sent)
            while self._under_way:
                self._wait(self._under_way[0][1])
            file.commit()
        self.discard()

    def leave(self, exception: BaseException | None) -> None:
        """What the end of a ``with`` block does: commit(), or with an exception discard().

        Where a failure of this file is behind the exception, that is raised: all that torch says of it is
        that a position is unexpected.
        """
        if exception is None:
            self.commit()
        self.discard()
        if (
            exception is not None
            and self._failure is not None
            and not isinstance(exception, type(self._failure))
        ):
            raise copy.copy(self._failure) from exception

    def discard(self) -> None:
        """Removes what was written; the old file stays. Does nothing after commit()."""
        file, self._file = self._file, None
        self._under_way = []
        self._parts = None
        if file is not None:
            file.discard()

    @contextlib.contextmanager
    def _whole_or_nothing(self) -> Iterator[AtomicFile]:
        """The file. After an exception it is unknown which bytes are in it: it is discarded."""
        if self._failure is not None:
            raise copy.copy(self._failure)
        if self._file is None:
            raise ValueError("write to a closed file")
        try:
            yield self._file
        except BaseException as error:
            self._failure = copy.copy(error)  # without its frames, which hold this object
            self.discard()
            raise

    def _free_part(self) -> memoryview:
        if self._parts is None:
            whole = memoryview(Buffer(_PARTS * _PART_BYTES))
            self._parts = cut(whole, _PARTS)
        if self._filled == 0:
            self._wait(self._part)
        return self._parts[self._part]

    def _send(self, file: AtomicFile) -> None:
        if self._parts is None or self._filled == 0:
            return
        self._reserve(file, self._sent + self._filled)
        data = self._parts[self._part][: self._filled]
        self._under_way.append((self._handle.write(file, data, offset=self._sent), self._part))
        self._sent += self._filled
        self._filled = 0
        self._part = (self._part + 1) % len(self._parts)

    def _wait(self, part: int) -> None:
        """Until nothing of that part is under way any more."""
        for one in [one for one in self._under_way if one[1] == part]:
            one[0].result()
            self._under_way.remove(one)
            if self._on_sent is not None:
                self._on_sent(one[0])

    def _reserve(self, file: AtomicFile, end: int) -> None:
        """Takes space ahead, in growing steps, so that writes need not make the file longer one by one."""
        if end <= self._reserved:
            return
        ahead = max(_FIRST_RESERVE_BYTES, self._reserved + min(self._reserved, _RESERVE_STEP_MAX_BYTES))
        if ahead > end:
            try:
                file.resize(ahead)
                self._reserved = ahead
                return
            except TransferError as error:
                if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):  # so much may not be needed
                    raise
        file.resize(end)
        self._reserved = end


def cut(memory: memoryview, parts: int) -> list[memoryview]:
    """Cuts bytes into that many parts, of the same size but for the last ones."""
    size = -(-len(memory) // parts)
    return [memory[start : start + size] for start in range(0, len(memory), size)]


class StreamWriter(io.RawIOBase):
    """What headrace.torch.writer returns."""

    def __init__(self, path: Path, durability: Durability, handle: Handle | None) -> None:
        super().__init__()
        self.name = path
        self.mode = "wb"
        self._stream = AtomicStream(path, durability=durability, handle=handle)

    def writable(self) -> bool:
        return True

    def write(self, data: SupportsBuffer) -> int:
        """Appends all the bytes, which may change once it returns."""
        return self._stream.write(data)

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Forward only: what is passed over holds zeros."""
        if whence == os.SEEK_END:
            whence = os.SEEK_CUR  # the end is where the file is written
        target = offset + (self.tell() if whence == os.SEEK_CUR else 0)
        if target < self.tell():
            raise io.UnsupportedOperation(f"seek to {target}: the bytes before {self.tell()} are written")
        self._stream.skip(target - self.tell())
        return target

    def fileno(self) -> int:
        raise io.UnsupportedOperation("bytes of this file must come through write()")

    def close(self) -> None:
        """Makes the file appear under its name. Raises if that or a write failed; then it does not."""
        if self.closed:
            return
        try:
            self._stream.commit()
        finally:
            super().close()

    def discard(self) -> None:
        """Removes what was written and closes; the old file stays. Does nothing when closed."""
        self._stream.discard()
        super().close()

    def __exit__(self, _: object, exception: BaseException | None, __: object) -> None:
        try:
            self._stream.leave(exception)
        finally:
            super().close()

    def __del__(self) -> None:
        if not self.closed and hasattr(self, "_stream"):
            import warnings

            warnings.warn(
                f"{self.name!r} was not saved: its writer was dropped before close()",
                ResourceWarning,
                stacklevel=2,
            )
            self.discard()


class StreamReader(io.RawIOBase):
    """Under what headrace.torch.reader returns: reads straight into the caller's memory."""

    def __init__(self, path: Path, handle: Handle | None) -> None:
        super().__init__()
        self.name = path
        self.mode = "rb"
        self._handle = handle or default_handle()
        self._file = File(path)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, target: SupportsBuffer) -> int:
        """Fills ``target``, or what the file has left of it."""
        view = memoryview(target).cast("B")
        count = self._handle.read(self._file, view, offset=self._position, partial=True).result()
        self._position += count
        return count

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}[whence]
        if start + offset < 0:
            raise ValueError(f"seek to {start + offset}: before the start of the file")
        self._position = start + offset
        return self._position

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):  # not where opening it failed
            self._file.close()
        super().close()
