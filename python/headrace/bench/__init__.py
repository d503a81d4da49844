# SPDX-License-Identifier: Apache-2.0
"""python -m headrace bench: measurements that others can repeat. checkpoint: docs/benchmark-checkpoint.md."""

from __future__ import annotations

import contextlib
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from .command import Progress, print_error, report_error
from .options import OPERATION, parse
from .stop import Stop, end_by_signal

if TYPE_CHECKING:
    from .options import Options
    from .report import Report

__all__ = ["main"]


class BenchError(Exception):
    """The benchmark cannot run here; the message says why and what helps."""


class ModelError(BenchError):
    """No such model: what was asked for is wrong, not this machine."""


def main(argv: list[str]) -> int:
    """Returns the exit code: 0 done, 1 failed, 2 usage. Signals end the process, see stop.py."""
    options = parse(argv)
    progress = Progress(f"headrace: {OPERATION}")
    try:
        with Stop(OPERATION, as_json=options.json) as stop:
            # stdout is for the result alone: with --json the lines of the guide go to stderr.
            with contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext():
                report = _run(options, progress, stop)
            if options.json:
                report.print_json()
            else:
                report.print_summary()
            sys.stdout.flush()
    except ModelError as error:
        progress.clear()
        print(f"headrace: {OPERATION}: {error}", file=sys.stderr)
        if options.json:
            print_error({"code": "usage", "message": str(error)})
        return 2
    except BrokenPipeError:  # the reader of the lines has gone, which is no error
        end_by_signal(signal.SIGPIPE)
    except (BenchError, OSError, MemoryError) as error:
        progress.clear()
        return report_error(error, str(error) or "out of memory", OPERATION, as_json=options.json)
    except RuntimeError as error:  # torch's, of a full disk or of too little memory
        from .setting import first_line

        progress.clear()
        return report_error(error, first_line(error), OPERATION, as_json=options.json)
    return 0


def _run(options: Options, progress: Progress, stop: Stop) -> Report:
    """All files are made in a new folder inside of --folder, so that nobody else's are touched."""
    progress.step("importing torch")
    from . import engine, load, saves
    from .setting import check

    check(options)
    runs = {"tensor": saves.run, "model": saves.run, "load": load.run, "engine": engine.run}
    with stop.folder(options.folder, "headrace-bench-") as folder:
        report = runs[options.benchmark](replace(options, folder=folder), progress)
        progress.clear()
        if options.keep:
            stop.keep(folder)
            report.kept = str(folder)
    return report
