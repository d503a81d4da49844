# SPDX-License-Identifier: Apache-2.0
"""python -m headrace COMMAND: what the program `headrace` does, with this Python."""

from __future__ import annotations

import os
import sys


def _mend_stderr() -> None:
    """Where standard error takes nothing, closed say, its words go nowhere: else the next file that is opened
    would have its number."""
    try:
        os.write(2, b"")
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        if null != 2:
            os.close(null)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)


def main(argv: list[str]) -> int:
    """Returns the exit code: 0 done, 1 failed, 2 usage, 3 other bytes came back than were written. The rest
    is left to the program."""
    _mend_stderr()
    if argv[:1] == ["demo"]:
        from .demo import main as demo

        return demo(argv[1:])
    if argv[:2] == ["bench", "checkpoint"]:
        from .bench import main as bench

        return bench(argv[1:])
    from ._program import become_program

    return become_program(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
