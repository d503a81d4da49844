# SPDX-License-Identifier: Apache-2.0
"""python -m headrace bench: measurements that others can repeat. checkpoint: docs/benchmark-checkpoint.md."""

from __future__ import annotations

import contextlib
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from .command import CommandError, Progress, print_error, printable, report_error
from .options import OPERATION, parse
from .stop import Stop, end_by_signal

if TYPE_CHECKING:
    from .options import Options
    from .report import Report

__all__ = ["main"]


class BenchError(CommandError):
    """The benchmark cannot run here."""


class ModelError(BenchError):
    """No such model: what was asked for is wrong, not this machine."""


def main(argv: list[str]) -> int:
    """Returns the exit code: 0 done, 1 failed, 2 usage, 3 other values came back than were saved. Signals end
    the process, see stop.py."""
    options = parse(argv)
    progress = Progress(f"headrace: {OPERATION}")
    try:
        with Stop(OPERATION, as_json=options.json) as stop, progress:
            # stdout is for the result alone: with --json the lines of the guide go to stderr.
            with contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext():
                report = _run(options, progress, stop)
            if options.json:
                report.print_json()
            else:
                report.print_summary()
            sys.stdout.flush()
    except ModelError as error:
        print(f"headrace: {OPERATION}: {printable(str(error))}", file=sys.stderr)
        if options.json:
            print_error({"code": "usage", "message": str(error)})
        return 2
    except BrokenPipeError:  # the reader of the lines has gone, which is no error
        end_by_signal(signal.SIGPIPE)
    except Exception as error:  # torch's, of a full disk or of too little memory, or the model's own
        return report_error(error, OPERATION, as_json=options.json)
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
