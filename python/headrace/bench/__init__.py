# SPDX-License-Identifier: Apache-2.0
"""python -m headrace bench: measurements that others can repeat. checkpoint: docs/benchmark-checkpoint.md."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from .options import parse

if TYPE_CHECKING:
    from .options import Options
    from .report import Report

__all__ = ["main"]


class BenchError(Exception):
    """The benchmark cannot run here; the message says why and what helps."""


class ModelError(BenchError):
    """No such model: what was asked for is wrong, not this machine."""


def main(argv: list[str]) -> int:
    """Returns the exit code: 0 done, 1 failed, 2 usage."""
    options = parse(argv)
    try:
        # stdout is for the result alone: with --json the lines of the guide go to stderr.
        with contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext():
            report = _run(options)
    except ModelError as error:
        print(f"headrace bench: {error}", file=sys.stderr)
        return 2
    except (BenchError, OSError, MemoryError) as error:
        print(f"headrace bench: {error}", file=sys.stderr)
        return 1
    except RuntimeError as error:  # torch's, of a full disk or of too little memory
        from .setting import first_line

        print(f"headrace bench: {first_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("headrace bench: interrupted", file=sys.stderr)
        return 130
    if options.json:
        report.print_json()
    else:
        report.print_summary()
    return 0


def _run(options: Options) -> Report:
    from . import engine, load, saves
    from .setting import check

    check(options)
    runs = {"tensor": saves.run, "model": saves.run, "load": load.run, "engine": engine.run}
    return runs[options.benchmark](options)
