# SPDX-License-Identifier: Apache-2.0
"""What the commands written in Python share with the others of the program: the look of --help, errors with
their JSON, and progress on stderr. Nothing here needs torch or the compiled module."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import shutil
import sys
import textwrap
import time
from typing import NoReturn

from .._errors import FormatError, TransferError

COLUMNS = 80  # where the output is no terminal
COLUMNS_MIN = 40
LINE_EVERY_S = 10  # of progress, where stderr is no terminal
LINE_MAX = 120

# As in tools/cli: controls, what turns the direction of writing, and what stands for bytes that are no UTF-8.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NO_UTF8 = re.compile("[\ud800-\udfff]")


class CommandError(Exception):
    """A command cannot go on; the message says why and what helps."""


class DataError(CommandError):
    """Other bytes came back than were written."""


class Parser(argparse.ArgumentParser):
    """Prints help and errors as the commands in tools/cli do. ``description`` and ``epilog``: lines that
    begin with a blank stay as they are."""

    usage_line = ""  # of its own; parse_intermixed_args() sets ``usage``

    def format_help(self) -> str:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else COLUMNS
        columns = max(columns, COLUMNS_MIN)
        groups = [(group.title or "", group._group_actions) for group in self._action_groups]
        names = {"positional arguments": "Positionals", "options": "Options"}
        text = f"{_wrapped(self.description or '', columns)}\n{_wrapped(self._usage(), columns)}"
        for title, actions in groups:
            if actions:
                text += f"\n{names.get(title, title)}:\n"
                text += "".join(_option(action, columns) for action in actions)
        return f"{text}\n{_wrapped(self.epilog, columns)}" if self.epilog else text

    def _usage(self) -> str:
        if self.usage_line:
            return f"Usage: {self.usage_line}"
        places = [action for action in self._actions if not action.option_strings]
        words = [f"[{action.metavar or action.dest}]" for action in places]
        return " ".join(["Usage:", self.prog, "[OPTION]...", *words])

    def error(self, message: str) -> NoReturn:
        usage_error(message, self.prog)


def _wrapped(text: str, columns: int, indent: int = 0) -> str:
    margin = " " * indent
    lines: list[str] = []
    for line in text.splitlines():
        laid_out = line.startswith(" ") or not line
        lines += [line] if laid_out else textwrap.wrap(line, columns - indent, break_on_hyphens=False)
    return "".join(f"{margin}{line}".rstrip() + "\n" for line in lines)


def _option(action: argparse.Action, columns: int) -> str:
    head = ", ".join(sorted(action.option_strings, key=lambda name: name.startswith("--")))
    if not action.option_strings:
        head = str(action.metavar or action.dest)
    elif action.nargs != 0:
        shown = (
            "|".join(map(str, action.choices)) if action.choices and not action.metavar else action.metavar
        )
        head += f" {shown or 'N'}{'...' if action.nargs == '+' else ''}"
        if action.default not in (None, "", [], ()) and action.default is not argparse.SUPPRESS:
            head += f" (default: {action.default})"
    return f"  {head}\n{_wrapped(action.help or '', columns, 8)}"


def wants_json(argv: list[str] | None = None) -> bool:
    """Which form errors take has to be known before the parser has understood anything."""
    return "--json" in (sys.argv[1:] if argv is None else argv)


def usage_error(message: str, command: str) -> NoReturn:
    """Says what is wrong with the command line and ends with status 2."""
    print(f"headrace: {printable(message)}\nSee: {command} --help", file=sys.stderr)
    if wants_json():
        print_error({"code": "usage", "message": message})
    sys.exit(2)


def report_error(error: Exception, operation: str, *, as_json: bool) -> int:
    """Says what failed; returns the exit status: 3 where data are not what they should be, else 1."""
    corrupt = isinstance(error, (DataError, FormatError))
    message = _message_of(error)
    print(f"headrace: {operation}: {printable(message)}", file=sys.stderr)
    if as_json:
        number = error.errno if isinstance(error, OSError) else None
        number = errno.ENOMEM if isinstance(error, MemoryError) else number
        code = "corrupt" if corrupt else "system" if number else "unavailable"
        print_error(failure(code, operation, message, _path_of(error), number))
    return 3 if corrupt else 1


def _message_of(error: Exception) -> str:
    if isinstance(error, (CommandError, TransferError)):
        return str(error)
    if isinstance(error, OSError) and error.strerror:  # str() would show its path as Python writes it
        path = _path_of(error)
        return f"{path}: {error.strerror}" if path else error.strerror
    if isinstance(error, MemoryError):
        return str(error) or "out of memory"
    return first_line(error)


def _path_of(error: Exception) -> str:
    path = getattr(error, "filename", None)
    return os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""


def first_line(error: BaseException) -> str:
    """Of a message from elsewhere: no colours, no more than a line of it."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", f"{type(error).__name__}: {error}".splitlines()[0]).strip(": ")
    return line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]}..."


def printable(text: str) -> str:
    """For people: control characters, and bytes that are no UTF-8, as \\xNN."""
    return _UNSAFE.sub(lambda found: "".join(f"\\x{byte:02x}" for byte in _bytes_of(found[0])), text)


def _bytes_of(character: str) -> bytes:
    escaped = "\udc80" <= character <= "\udcff"
    return character.encode("utf-8", "surrogateescape" if escaped else "surrogatepass")


def failure(
    code: str, operation: str, message: str, path: str = "", number: int | None = None
) -> dict[str, object]:
    """What stands under "error" in docs/schema/error.json."""
    return {
        "code": code,
        "operation": operation,
        "path": path,
        "offset_bytes": 0,
        "length_bytes": 0,
        "errno": errno.errorcode.get(number) if number else None,
        "message": message,
    }


def print_error(error: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # standard error has it in words
        print_json({"schema": "headrace.error", "version": 1, "error": error})


def print_json(result: dict[str, object]) -> None:
    """What is no UTF-8 stands as U+FFFD."""
    text = _NO_UTF8.sub("\ufffd", json.dumps(result, ensure_ascii=False))
    print(json.dumps(json.loads(text), indent=2), flush=True)


def stderr_columns() -> int:
    """Of its terminal. (shutil asks standard output, which may be a file.)"""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError):
        return COLUMNS


def draws_over() -> bool:
    """Is stderr a terminal that takes escape sequences?"""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


class Progress:
    """What is done now, on stderr. On a terminal one line that is drawn over, and goes at the end of the
    block; elsewhere a line every ten seconds at most."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._terminal = draws_over()
        self._drawn = False
        self._shown_s = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def step(self, what: str) -> None:
        self._show(f"{self._name}: {what}")

    def _show(self, line: str) -> None:
        line = printable(line)
        now_s = time.monotonic()
        if self._terminal:
            print(f"\r\033[K{line[: stderr_columns() - 1]}", end="", file=sys.stderr, flush=True)
            self._drawn = True
        elif now_s - self._shown_s >= LINE_EVERY_S:
            self._shown_s = now_s
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Takes the line away: before anything else is printed."""
        if self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._drawn = False
