# SPDX-License-Identifier: Apache-2.0
"""The program `headrace` that came with this package, for those who start it as ``python -m headrace``."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib import metadata
from typing import NoReturn

from ._core import __version__

__all__ = ["become_program", "find_program"]


def find_program() -> str | None:
    """Its path, or None. The wheel's own record is asked first: scripts go where pip was told to put them."""
    candidates: list[str | None] = []
    try:
        files = metadata.files("headrace") or []
    except metadata.PackageNotFoundError:
        files = []
    candidates += [str(file.locate()) for file in files if file.name == "headrace" and len(file.parts) > 1]
    candidates.append(os.path.join(sysconfig.get_path("scripts"), "headrace"))
    candidates.append(shutil.which("headrace"))
    for path in candidates:
        if path and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def become_program(argv: list[str]) -> NoReturn:
    """Runs it in the place of this process; exits with 1 where there is none."""
    path = find_program()
    if path is None:
        sys.exit(
            f"headrace: the program headrace is not beside this Python ({sys.executable}): "
            f"install the package again (pip install --force-reinstall headrace=={__version__})"
        )
    sys.stdout.flush()
    sys.stderr.flush()
    # The commands written in Python are run by the Python that asked.
    os.environ["HEADRACE_PYTHON"] = sys.executable
    os.execv(path, [path, *argv])
