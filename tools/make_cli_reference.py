#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/cli/reference.md from what the program says: make_cli_reference.py PROGRAM [--check]"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli" / "reference.md"
HEAD = """\
# Reference of the program `headrace`

What `--help` says, command by command. Written by `tools/make_cli_reference.py`; a test compares it
with the program.
"""
# These are written in Python, and their help comes from there.
IN_PYTHON = {("demo",), ("bench", "checkpoint")}


def help_of(program: str, command: tuple[str, ...]) -> str:
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [program, *command, "--help"], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.rstrip() + "\n"


def commands_of(text: str) -> list[str]:
    """The names under "Subcommands:"."""
    section = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.MULTILINE)
    return re.findall(r"^  (\S+)", section[1], re.MULTILINE) if section else []


def reference(program: str) -> str:
    page = [HEAD]
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        command = waiting.pop(0)
        text = help_of(program, command)
        page.append(f"## `{' '.join(('headrace', *command))}`\n\n```text\n{text}```\n")
        deeper = [(*command, name) for name in commands_of(text)]
        waiting = [one for one in deeper if one not in IN_PYTHON] + waiting
    return "\n".join(page)


def main() -> int:
    program, check = sys.argv[1], "--check" in sys.argv[2:]
    text = reference(program)
    if not check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE} is not what {program} says; run {sys.argv[0]} {program}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
