# SPDX-License-Identifier: Apache-2.0
"""The exceptions of headrace. All of them derive from TransferError, which is an OSError.

Where Python has a builtin class for the same failure, the headrace class derives from that too, so that
``except FileNotFoundError`` works. They can be pickled. A wait that ends too early raises the builtin
TimeoutError, the result of a cancelled transfer concurrent.futures.CancelledError.
"""

from __future__ import annotations

import errno
import os


class TransferError(OSError):
    """A request failed, or could not be started.

    ``errno``: the system's error number, or None when no system call failed. ``filename``: the file as the
    caller named it. ``operation``: "open", "read", "write", "datasync", "rename" and so on. ``offset``,
    ``length``: the byte range asked for. ``transferred``: bytes moved from its start without a gap.
    """

    operation: str = ""
    offset: int = 0
    length: int = 0
    transferred: int = 0
    _message: str = ""

    def __str__(self) -> str:
        return self._message or super().__str__()


class EndOfFileError(TransferError, EOFError):
    """The file ends before the range does; ``transferred`` bytes were read. With ``partial=True`` a count."""


class NotFoundError(TransferError, FileNotFoundError):
    """ENOENT."""


class PermissionDeniedError(TransferError, PermissionError):
    """EACCES or EPERM."""


class DirectoryError(TransferError, IsADirectoryError):
    """EISDIR: a directory was named where a file is needed."""


class NotDirectoryError(TransferError, NotADirectoryError):
    """ENOTDIR: part of the path is no directory."""


class ExistsError(TransferError, FileExistsError):
    """EEXIST: mode="create" and the file is there."""


class InvalidRequestError(TransferError, ValueError):
    """The request makes no sense, whatever the state of the system."""


class UnavailableError(TransferError):
    """An engine or feature that was asked for by name cannot work here; the message says why."""


class LimitError(TransferError):
    """requests_max requests are unfinished, and the handle was made with when_full="raise"."""


class AbortedError(TransferError):
    """abort() stopped the transfer; ``transferred`` bytes were moved before."""


class FormatError(TransferError, ValueError):
    """The contents of a file break the rules of its format, at byte ``offset``: damaged, cut, or hostile."""


class ClosedError(TransferError, ValueError):
    """The handle or file is closed, or belongs to the process that forked this one."""


_BY_ERRNO: dict[int, type[TransferError]] = {
    errno.ENOENT: NotFoundError,
    errno.EACCES: PermissionDeniedError,
    errno.EPERM: PermissionDeniedError,
    errno.EISDIR: DirectoryError,
    errno.ENOTDIR: NotDirectoryError,
    errno.EEXIST: ExistsError,
}

_BY_CODE: dict[str, type[TransferError]] = {
    "end_of_file": EndOfFileError,
    "aborted": AbortedError,
    "invalid_argument": InvalidRequestError,
    "unavailable": UnavailableError,
    "limit_reached": LimitError,
    "closed": ClosedError,
    "corrupt": FormatError,
}


def make_exception(
    code: str,
    number: int,
    operation: str,
    filename: object,
    offset: int,
    length: int,
    transferred: int,
    message: str,
) -> BaseException:
    """The exception for an error of the library, which calls this. ``number``: an errno, or 0."""
    if code == "cancelled":
        from concurrent.futures import CancelledError  # here, because it imports logging

        return CancelledError(message)
    if code == "timed_out":
        return TimeoutError(message)
    kind = _BY_CODE.get(code) or _BY_ERRNO.get(number, TransferError)
    strerror = os.strerror(number) if number else message
    arguments = (number or None, strerror)
    error = kind(*arguments) if filename is None else kind(*arguments, filename)
    error.operation = operation
    error.offset = offset
    error.length = length
    error.transferred = transferred
    error._message = message
    return error


def add_note(exception: BaseException, failure: BaseException) -> None:
    """Tells of ``failure``, met while ``exception`` was on its way, without taking its place."""
    note = f"while this exception left the block, closing the headrace.Handle failed too: {failure}"
    if hasattr(exception, "add_note"):
        exception.add_note(note)
    elif exception.__context__ is None:  # Python 3.10
        exception.__context__ = failure
