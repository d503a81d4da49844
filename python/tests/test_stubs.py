# SPDX-License-Identifier: Apache-2.0
"""The type stubs that are shipped are those of the extension that is shipped, and a type checker agrees
with the examples."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import headrace
import pytest

ROOT = Path(__file__).resolve().parents[2]


def maker() -> ModuleType:
    pytest.importorskip("nanobind")
    spec = importlib.util.spec_from_file_location("make_stub", ROOT / "python/src/make_stub.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shipped_stub_is_that_of_the_extension() -> None:
    """To make it anew, with headrace installed: python python/src/make_stub.py"""
    if sys.version_info >= (3, 12):
        pytest.skip("CPython 3.12 shows the buffer slot; the shipped stub is made with an older one")
    shipped = Path(headrace.__file__).with_name("_core.pyi").read_text(encoding="utf-8")
    assert shipped == maker().make_stub()


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(headrace.__file__).with_name("py.typed").exists()


def check(code: str, tmp_path: Path) -> str:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(code))
    package = Path(headrace.__file__).resolve().parents[1]
    # An installed package is found by its py.typed; a tree that is merely on the path has to be named.
    environment = {"PATH": ""} if package.name == "site-packages" else {"PATH": "", "MYPYPATH": str(package)}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-incremental",
            "--follow-imports=silent",
            str(program),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_strict_type_checker_accepts_what_works(tmp_path: Path) -> None:
    code = """
        import array
        import headrace
        from pathlib import Path

        async def use() -> int:
            buffer = headrace.Buffer(1 << 20, pages="small")
            with headrace.Handle(engine="auto", workers=2) as h:
                t: headrace.Transfer = h.read(b"file", bytearray(3), offset=1, partial=True)
                n: int = t.result(timeout=1.0) + await t
                h.write(Path("file"), [buffer, b"abc", memoryview(b"x"), array.array("b")], mode="replace")
                with h.replace("file", size=3) as f:
                    h.write_many([(f, b"abc", 0), (f, b"abc")])
                done, not_done = headrace.wait([t], return_when=headrace.FIRST_COMPLETED)
                for each in headrace.as_completed(done | not_done):
                    error = each.exception()
                    if error is not None:
                        print(error.transferred, error.operation, error.offset)
                    if each.route is not None:
                        print(each.route.engine, each.route.why)
                t.add_done_callback(lambda transfer: print(transfer.length))
            return n + buffer[3] + len(memoryview(buffer)[1:])
    """
    assert "Success" in check(code, tmp_path)


def test_a_strict_type_checker_finds_what_does_not_work(tmp_path: Path) -> None:
    code = """
        import headrace
        h = headrace.Handle(engine="fast")
        h.read(1.5, bytearray(3))
        h.read("file", "text")
        h.write("file", b"abc", mode="append")
        h.write_many([(b"abc",)])
    """
    assert "Found 5 errors" in check(code, tmp_path)
