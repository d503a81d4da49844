# SPDX-License-Identifier: Apache-2.0
"""Makes python/headrace/_core.pyi from the compiled extension, by nanobind.stubgen. A test compares the two.

Usage, with headrace installed: python python/src/make_stub.py [OUTPUT]
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from nanobind.stubgen import StubGen, load_pattern_file

HERE = Path(__file__).resolve().parent
HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# Made by python/src/make_stub.py; a test compares.
# fmt: off
# ruff: noqa
"""


def make_stub() -> str:
    """The text of the stub."""
    module = importlib.import_module("headrace._core")
    generator = StubGen(module, quiet=True, patterns=load_pattern_file(str(HERE / "stub.pattern")))
    generator.put(module)
    return HEAD + generator.get()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "headrace" / "_core.pyi"
    target.write_text(make_stub(), encoding="utf-8")
