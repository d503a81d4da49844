# SPDX-License-Identifier: Apache-2.0
"""python -m headrace demo | bench | engines"""

from __future__ import annotations

import sys

USAGE = """\
usage: python -m headrace demo [--help]  move a real model and a large buffer, and print a table
       python -m headrace bench checkpoint tensor|model|engine|load [--help]
                                         the micro-benchmarks of DeepSpeed's FastPersist guide
       python -m headrace engines        which engines work here, and why others do not
       python -m headrace --version
"""


def main(argv: list[str]) -> int:
    """Returns the exit code: 0 done, 1 failed, 2 usage."""
    command = argv[0] if argv else ""
    if command == "demo":
        from .demo import main as demo

        return demo(argv[1:])
    if command == "bench":
        from .bench import main as bench

        return bench(argv[1:])
    if command == "engines":
        from . import probe_engines

        for info in probe_engines():
            print(f"{info.name:6} {'works' if info.available else 'does not work'}: {info.reason}")
        return 0
    if command in ("--version", "-V"):
        from . import __version__

        print(f"headrace {__version__}")
        return 0
    wants_help = command in ("--help", "-h", "help")
    print(USAGE, end="", file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
