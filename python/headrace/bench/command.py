# SPDX-License-Identifier: Apache-2.0
"""What the commands written in Python share with the others of the program: the look of --help, errors with
their JSON, and progress on stderr. Nothing here needs torch or the compiled module."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import sys
import textwrap
from typing import NoReturn

COLUMNS = 80  # where the output is no terminal
COLUMNS_MIN = 40


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
    print(f"headrace: {message}\nSee: {command} --help", file=sys.stderr)
    if wants_json():
        print_error({"code": "usage", "message": message})
    sys.exit(2)


def report_error(error: BaseException, message: str, operation: str, *, as_json: bool) -> int:
    """Says what failed; returns the exit status, 1."""
    print(f"headrace: {operation}: {message}", file=sys.stderr)
    if as_json:
        number = error.errno if isinstance(error, OSError) else None
        number = errno.ENOMEM if isinstance(error, MemoryError) else number
        path = getattr(error, "filename", None) or ""
        print_error(
            failure("system" if number else "unavailable", operation, message, os.fsdecode(path), number)
        )
    return 1


def failure(
    code: str, operation: str, message: str, path: str = "", number: int | None = None
) -> dict[str, object]:
    """What stands under "error" in docs/schema/error.json."""
    return {
        "code": code,
        "operation": operation,
        "path": path.encode("utf-8", "replace").decode(),
        "offset_bytes": 0,
        "length_bytes": 0,
        "errno": errno.errorcode.get(number) if number else None,
        "message": message,
    }


def print_error(error: dict[str, object]) -> None:
    print(json.dumps({"schema": "headrace.error", "version": 1, "error": error}, indent=2), flush=True)


def stderr_columns() -> int:
    """Of its terminal. (shutil asks standard output, which may be a file.)"""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError):
        return COLUMNS


class Progress:
    """What is done now, on stderr. On a terminal one line that is drawn over; elsewhere a line each time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = False

    def step(self, what: str) -> None:
        if self._terminal:
            line = f"{self._name}: {what}"[: stderr_columns() - 1]
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
            self._drawn = True
        else:
            print(f"{self._name}: {what}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Takes the line away: before anything else is printed."""
        if self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._drawn = False
