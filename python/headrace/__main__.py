# SPDX-License-Identifier: Apache-2.0
"""python -m headrace COMMAND: what the program `headrace` does, with this Python."""

from __future__ import annotations

import sys


def main(argv: list[str]) -> int:
    """Returns the exit code: 0 done, 1 failed, 2 usage. The rest is left to the program."""
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
