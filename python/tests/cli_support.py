# SPDX-License-Identifier: Apache-2.0
"""The program `headrace` as a user runs it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def program() -> str:
    """The one that the wheel installed beside this Python, or what HEADRACE_PROGRAM names."""
    named = os.environ.get("HEADRACE_PROGRAM")
    return named or str(Path(sys.executable).parent / "headrace")


def run(
    *arguments: str | os.PathLike[str] | bytes, timeout: float = 120, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs it to its end, whatever that is; output as text, in which bytes that are no UTF-8 are surrogates."""
    options.setdefault("stdin", subprocess.DEVNULL)
    if not {"stdout", "stderr", "capture_output"} & options.keys():
        options["capture_output"] = True
    return subprocess.run(
        [program(), *arguments], timeout=timeout, text=True, errors="surrogateescape", **options
    )


def run_json(*arguments: str | os.PathLike[str], code: int = 0, **options: Any) -> dict[str, Any]:
    """Its result with --json; the exit code must be `code`."""
    done = run(*arguments, "--json", **options)
    assert done.returncode == code, (done.returncode, done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
