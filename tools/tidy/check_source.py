#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on source that breaks the rules of the house which a compiler does not know.

Usage: check_source.py [ROOT]. Prints one line per offence and exits 1 if there is any. The rules:
every file starts with its licence line; headers and sources of the library go on with three lines
that say what the file is, which thread may use it and who owns what; the library never prints,
exits, reads the environment or installs handlers; no build for one machine only; each source is
listed in the CMakeLists.txt that builds it; 500 lines are the ceiling of a file of the library.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LICENCE = "SPDX-License-Identifier: Apache-2.0"
LINES_MAX = 500
FOLDERS = ("include", "src", "tests", "fuzz", "bench", "python", "tools", "cmake")
LICENSED_SUFFIXES = {".h", ".cc", ".py", ".pyi", ".cmake", ".sh", ".toml", ".in"}
LIBRARY = ("include/", "src/", "python/src/")

# A call that stands as a statement or an operand: t.abort() and Transfer::abort() are other things.
CALL = r"(?:(?:^|[;{{}}()?,=!&|<]|(?<!:):(?!:)|\breturn|\belse)\s*(?:std::|::)?|\bstd::)({names})\s*\("
BANNED = [
    (
        re.compile(
            r"(?<![\w.>])(?:std::|::)?\b(printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|perror|dprintf)\s*\("
        ),
        "prints",
    ),
    (re.compile(r"\bstd::(cout|cerr|clog)\b"), "prints"),
    (re.compile(r"\bfmt::(print|println)\s*\("), "prints"),
    (re.compile(r"#\s*include\s*<(iostream|print|fmt/ostream\.h|fmt/color\.h)>"), "is for printing"),
    (
        re.compile(CALL.format(names="abort|exit|_exit|_Exit|quick_exit|terminate"), re.MULTILINE),
        "ends the process",
    ),
    (re.compile(r"\b(getenv|secure_getenv|setenv|putenv|environ)\b"), "touches the environment"),
    (re.compile(r"(?<![\w.>])(?:std::|::)?\b(sigaction|atexit|at_quick_exit)\s*\("), "installs a handler"),
    (re.compile(r"(\bstd::signal|\bsignal(?=\s*\(\s*SIG))\s*\("), "installs a handler"),
    (re.compile(r"(?<!\w)(assert)\s*\("), "is HEADRACE_CHECK here: assert vanishes in release builds"),
    (re.compile(r"#\s*include\s*<(cassert|assert\.h)>"), "is base/check.h here"),
]
# The one file that may end the process.
MAY_ABORT = ("src/base/check.h", "src/base/check.cc")


def blank_comments_and_strings(text: str) -> str:
    """Replaces comments and literals by blanks of the same shape."""
    pattern = re.compile(
        r'R"(?P<d>[^()\s\\]{0,16})\(.*?\)(?P=d)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'',
        re.DOTALL,
    )
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def check_licence(path: str, lines: list[str]) -> list[str]:
    first = lines[1] if len(lines) > 1 and lines[0].startswith("#!") else (lines[0] if lines else "")
    if lines and LICENCE not in first:
        return [f"{path}:1: does not start with '{LICENCE}'"]
    return []


def check_head(path: str, lines: list[str]) -> list[str]:
    """Three comment lines after the licence, in headers and sources of the library."""
    if not path.startswith(LIBRARY) or path.endswith("_test.cc"):
        return []
    if len(lines) < 4 or not all(re.match(r"// \S", line) for line in lines[1:4]):
        return [f"{path}:2: lacks the three lines: what this is, which thread may use it, who owns what"]
    return []


def check_banned(path: str, text: str) -> list[str]:
    if not path.startswith(LIBRARY) or path.endswith("_test.cc"):
        return []
    faults = []
    blanked = blank_comments_and_strings(text)
    for pattern, why in BANNED:
        if why == "ends the process" and path in MAY_ABORT:
            continue
        for match in pattern.finditer(blanked):
            line = blanked.count("\n", 0, match.start(1)) + 1
            faults.append(f"{path}:{line}: {match[1]} {why}")
    return faults


def check_length(path: str, lines: list[str]) -> list[str]:
    if path.startswith(LIBRARY) and not path.endswith("_test.cc") and len(lines) > LINES_MAX:
        return [f"{path}:{LINES_MAX}: has {len(lines)} lines; {LINES_MAX} are the ceiling"]
    return []


def listed_sources(cmake_file: Path) -> set[str]:
    """Words of a CMakeLists.txt that may name a source; fuzz lists names without a suffix."""
    text = re.sub(r"#[^\n]*|\$\{[^}]*\}\.?\w*", "", cmake_file.read_text(encoding="utf-8"))
    return set(re.findall(r"[\w./+-]+", text))


def check_listed(root: Path, file: Path) -> list[str]:
    """A source must be named by the nearest CMakeLists.txt above it."""
    for folder in file.parents:
        if not folder.is_relative_to(root):
            break
        cmake_file = folder / "CMakeLists.txt"
        if cmake_file.is_file():
            words = listed_sources(cmake_file)
            name = file.relative_to(folder).as_posix()
            if name in words or (folder.name == "fuzz" and name.removesuffix(".cc") in words):
                return []
            return [f"{file.relative_to(root)}:1: is not listed in {cmake_file.relative_to(root)}"]
    return [f"{file.relative_to(root)}:1: has no CMakeLists.txt above it"]


def check_existing(root: Path, cmake_file: Path) -> list[str]:
    """Each .cc that a list names must be there, also one that this configuration does not build."""
    return [
        f"{cmake_file.relative_to(root)}:1: lists {word}, which does not exist"
        for word in sorted(listed_sources(cmake_file))
        if word.endswith(".cc") and not word.startswith("/") and not (cmake_file.parent / word).is_file()
    ]


def check_portable(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number}: builds for one machine only: {match[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := re.search(r"-m(arch|tune|cpu)=native", line))
    ]


def check(root: Path) -> list[str]:
    """Every offence under root, as lines."""
    faults = []
    files = [root / "CMakeLists.txt", root / "CMakePresets.json", root / "pyproject.toml", root / "dev"]
    for folder in FOLDERS:
        files += sorted((root / folder).rglob("*"))
    for file in files:
        if not file.is_file() or "__pycache__" in file.parts:
            continue
        path = file.relative_to(root).as_posix()
        if path == "tools/tidy/test_tidy.py":  # holds specimens of every offence
            continue
        is_cmake = file.name == "CMakeLists.txt"
        if file.suffix not in LICENSED_SUFFIXES | {".json"} and not is_cmake and path != "dev":
            continue
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        if is_cmake or path == "dev" or (file.suffix in LICENSED_SUFFIXES and path != "pyproject.toml"):
            faults += check_licence(path, lines)
        if is_cmake:
            faults += check_existing(root, file)
        if is_cmake or file.suffix in {".cmake", ".json", ".toml", ".sh"} or path == "dev":
            faults += check_portable(path, text)
        if file.suffix in {".h", ".cc"}:
            faults += check_head(path, lines) + check_banned(path, text) + check_length(path, lines)
        if file.suffix == ".cc":
            faults += check_listed(root, file)
    return faults


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]).resolve()
    faults = check(root)
    for fault in faults:
        print(fault)
    print(f"lint: source: {len(faults)} faults" if faults else "lint: source: ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
