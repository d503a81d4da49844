# SPDX-License-Identifier: Apache-2.0
"""Bytes that come one after another, into a file that appears whole or not at all; and a file to read from.

For programs that write to and read from file objects. One thread at a time: another one is refused.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import io
import os
import sys
import threading
import warnings
from operator import index
from typing import TYPE_CHECKING

from ._core import Buffer, File, Handle
from ._default import default_handle
from ._errors import ClosedError, TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn

    from ._core import AtomicFile, Transfer
    from ._types import Durability, OneMemory, Path, SupportsBuffer

_PART_BYTES = 16 << 20
_PARTS = 4
_NO_PART = -1  # from the caller's memory
_AHEAD_MIN_BYTES = 64 << 20
_AHEAD_MAX_BYTES = 1 << 30


class BusyError(RuntimeError):
    """Two threads in one stream: the second one's call did nothing."""


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
        self._handle = usable(handle)
        self._path = path
        self._file: AtomicFile | None = self._handle.replace(path, size=0, durability=durability)
        self._parts = staging
        self._on_sent = on_sent
        self._under_way: list[tuple[Transfer, int]] = []  # and the part that it is from
        self._part = 0
        self._filled = 0
        self._sent = 0  # bytes of the file that are written or under way
        self._reserved = 0
        self._failure: BaseException | None = None
        self._abandoned = False  # an exception has left the block: nothing that comes now is kept, or missed
        self._entered = threading.RLock()
        self._depth = 0
        self._handled = sys.exc_info()[1]  # what was being handled when this was made, if anything

    @property
    def closed(self) -> bool:
        """True after commit() and discard()."""
        return self._file is None

    def tell(self) -> int:
        """The number of bytes so far."""
        return self._sent + self._filled

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("a file that is being written cannot be copied or pickled")

    def write(self, data: SupportsBuffer) -> int:
        """Appends a copy of the bytes."""
        try:
            view = bytes_of(data)
            return self.fill(len(view), copier(view))
        except BaseException as error:
            if not isinstance(error, Exception) and self._failure is None:
                # Ctrl-C between two bytecodes: torch goes on to speak of an unexpected position.
                self._failure = without_frames(error)
                self.discard()
            raise

    def fill(self, nbytes: int, copy_part: Callable[[memoryview, int], None]) -> int:
        """Appends ``nbytes``: ``copy_part(target, offset)`` puts those from ``offset`` on into ``target``."""
        if self._abandoned:
            return nbytes
        with self.whole_or_nothing() as file:
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
        with self.whole_or_nothing() as file:
            self._send(file)
            if nbytes:
                self._reserve(file, self._sent + nbytes)
                self._under_way.append((self._handle.write(file, list(memory), offset=self._sent), _NO_PART))
                self._sent += nbytes
                self._wait(_NO_PART)

    def skip(self, nbytes: int) -> None:
        """Leaves ``nbytes`` zeros, which take space."""
        with self.whole_or_nothing() as file:
            self._send(file)
            self._sent += nbytes

    def commit(self) -> None:
        """Makes the file appear, with the durability asked for. Raises again what failed before; does nothing
        when it was done before, and after discard()."""
        if self._file is None and self._failure is None:
            return
        with self.whole_or_nothing() as file:
            self._send(file)
            file.resize(self._sent)
            while self._under_way:
                self._wait(self._under_way[0][1])
            file.commit()
        self.discard()

    def close(self) -> None:
        """commit(), unless an exception that came after this was made is being handled, in a ``finally`` or
        at the end of another ``with``: nobody knows that the file is whole then. The exception goes on."""
        raised = sys.exc_info()[1]
        if raised is not None and raised is not self._handled and not self.closed:
            self.discard()
            raise raised
        self.commit()

    def drop(self) -> None:
        """What the end of an object that was not closed does: discard(), and a ResourceWarning."""
        if not self.closed:
            self.discard()
            message = f"{self._path!r} was not saved: its writer was dropped before close()"
            warnings.warn(message, ResourceWarning, stacklevel=3)

    def leave(self, exception: BaseException | None) -> None:
        """What the end of a ``with`` block does: commit(), or with an exception discard().

        Where a failure of this file is behind the exception, that is raised: all that torch says of it is
        that a position is unexpected.
        """
        if exception is None:
            self.commit()
        self.discard()
        # torch's zip writer may write once more when it is destroyed: an exception would end the process.
        self._abandoned = exception is not None
        failure = self._failure
        if isinstance(exception, Exception) and failure and not isinstance(exception, type(failure)):
            raise copy.copy(failure) from exception

    def discard(self) -> None:
        """Removes what was written; the old file stays. Does nothing after commit()."""
        file, self._file = self._file, None
        self._under_way = []
        self._parts = None
        if file is not None:
            with contextlib.suppress(ClosedError):  # a forked child: the file is its parent's
                file.discard()

    @contextlib.contextmanager
    def whole_or_nothing(self) -> Iterator[AtomicFile]:
        """Yields the file. After an exception in the block it is unknown which bytes are in it: it is
        discarded, and every later call raises that again."""
        if not self._entered.acquire(blocking=False):
            raise BusyError(f"another thread is writing to {self._path!r}: one at a time can")
        try:
            if self._depth == 0:
                if self._failure is not None:
                    self.discard()
                    raise copy.copy(self._failure)
                if self._file is None:
                    raise ValueError("write to a closed file")
                # Until the end: whatever comes between, the file is not taken for whole.
                self._failure = TransferError(errno.EINTR, "a write was interrupted", self._path)
            assert self._file is not None
            self._depth += 1
            try:
                yield self._file
            except BaseException as error:
                self._failure = without_frames(error)
                self.discard()
                raise
            finally:
                self._depth -= 1
            if self._depth == 0:
                self._failure = None
        finally:
            self._entered.release()

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
        """Takes space ahead, in steps, so that writes need not make the file longer one by one; never much of
        what is free, which others may need."""
        if end <= self._reserved:
            return
        status = os.statvfs(os.path.dirname(file.temporary_path))
        free_bytes = status.f_bavail * status.f_frsize
        ahead = min(max(_AHEAD_MIN_BYTES, min(end // 4, _AHEAD_MAX_BYTES)), free_bytes // 8)
        try:
            file.resize(end + ahead)
            self._reserved = end + ahead
        except TransferError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):  # so much may not be needed
                raise
            file.resize(end)
            self._reserved = end


def usable(handle: Handle | None) -> Handle:
    """The handle, or the one that the process shares."""
    if handle is not None and not isinstance(handle, Handle):
        raise TypeError(f"handle must be a headrace.Handle or None, not {type(handle).__name__}")
    return handle or default_handle()


def bytes_of(data: SupportsBuffer) -> memoryview:
    """All of a contiguous buffer, as bytes."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def copier(view: memoryview) -> Callable[[memoryview, int], None]:
    """For AtomicStream.fill: copies from ``view``."""

    def copy_part(target: memoryview, offset: int) -> None:
        target[:] = view[offset : offset + len(target)]

    return copy_part


def without_frames(error: BaseException) -> BaseException:
    """The same exception once more, without the frames it came through: they hold what raised it."""
    try:
        return copy.copy(error)
    except Exception:  # its class takes other arguments than it keeps
        return RuntimeError(f"{type(error).__name__}: {error}")


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

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError("a file that is being written cannot be copied or pickled")

    def writable(self) -> bool:
        return True

    def write(self, data: SupportsBuffer) -> int:
        """Appends all the bytes, which may change once it returns."""
        return self._stream.write(data)

    def tell(self) -> int:
        self._checkClosed()
        return self._stream.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Forward only: what is passed over holds zeros, and takes space."""
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"whence must be 0, 1 or 2, not {whence!r}")
        # The end is where the file is written.
        target = index(offset) + (0 if whence == os.SEEK_SET else self.tell())
        if target < self.tell():
            raise io.UnsupportedOperation(f"seek to {target}: the bytes before {self.tell()} are written")
        self._stream.skip(target - self.tell())
        return target

    def fileno(self) -> int:
        raise io.UnsupportedOperation("bytes of this file must come through write()")

    def close(self) -> None:
        """Makes the file appear under its name, unless a write failed: then it raises that again.

        While an exception that came after the file was opened is being handled (in a ``finally``, or in the
        end of another ``with``), nobody knows that the file is whole: it is discarded, and the exception goes
        on. If only the folder cannot be synced, the file is in place and the error says so.
        """
        if self.closed:
            return
        try:
            self._stream.close()
        except BusyError:
            raise  # the other thread's file stays open
        except BaseException:
            super().close()
            raise
        super().close()

    def discard(self) -> None:
        """Removes what was written and closes; the old file stays. Does nothing when closed."""
        self._stream.discard()
        super().close()

    def __exit__(self, _: object, exception: BaseException | None, __: object) -> None:
        if self.closed:
            return
        try:
            self._stream.leave(exception)
        finally:
            super().close()

    def __del__(self) -> None:
        if not self.closed and hasattr(self, "_stream"):
            self._stream.drop()
            super().close()

    def _dealloc_warn(self, _: object) -> None:
        """An io.BufferedWriter over this file calls it when it is dropped, before it closes it."""
        self.__del__()


class StreamReader(io.RawIOBase):
    """Under what headrace.torch.reader returns: reads straight into the caller's memory."""

    def __init__(self, path: Path, handle: Handle | None) -> None:
        super().__init__()
        self.name = path
        self.mode = "rb"
        self._handle = usable(handle)
        self._file = File(path)
        self._position = 0
        self.failure: BaseException | None = None  # of the last read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, target: SupportsBuffer) -> int:
        """Fills ``target``, or what the file has left of it."""
        transfer = self._handle.read(self._file, bytes_of(target), offset=self._position, partial=True)
        self.failure = None
        try:
            count = transfer.result()
        except BaseException as error:
            self.failure = without_frames(error)
            # The caller may free the memory: io.BufferedReader hands on a bare pointer.
            transfer.abort()
            while not transfer.done():
                with contextlib.suppress(BaseException):
                    transfer.exception()
            raise
        self._position += count
        return count

    def readall(self) -> bytes:
        """The rest of the file."""
        found = bytearray(max(self._file.size - self._position, 0))
        view = memoryview(found)
        done = 0
        while done < len(found) and (count := self.readinto(view[done:])):
            done += count
        view.release()
        del found[done:]
        return bytes(found)

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}
        if whence not in starts:
            raise ValueError(f"whence must be 0, 1 or 2, not {whence!r}")
        target = starts[whence] + index(offset)
        if target < 0:
            raise ValueError(f"seek to {target}: before the start of the file")
        self._position = target
        return target

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):  # not where opening it failed
            self._file.close()
        super().close()


class BufferedStreamReader(io.BufferedReader):
    """What headrace.torch.reader returns: io.BufferedReader, ending ``with`` by the true error."""

    def __exit__(self, _: object, exception: BaseException | None, __: object) -> None:
        raw = self.raw
        failure = raw.failure if isinstance(raw, StreamReader) else None
        self.close()
        # torch turns what a read raises into a ValueError about a closed file.
        if isinstance(exception, Exception) and failure and not isinstance(exception, type(failure)):
            raise copy.copy(failure) from exception
