#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an #include that tools/tidy/layers.toml does not allow.

Usage: check_layers.py [ROOT]. Prints one line per offence and exits 1 if there is any.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pip carries the same parser
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(<[^>\n]+>|"[^"\n]+"|\S+)', re.MULTILINE)
SYSTEM_RANKS = {"std": 0, "posix": 1, "kernel": 2}


def strip_comments(text: str) -> str:
    """Removes comments and keeps line numbers and string literals."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
    return pattern.sub(lambda m: "\n" * m[0].count("\n") if m[0].startswith(("//", "/*")) else m[0], text)


class Rules:
    """The table of layers.toml, checked for sense."""

    def __init__(self, table: dict) -> None:
        self.layers: dict[str, dict] = table["layer"]
        self.third_party: dict[str, list[str]] = table.get("third_party", {})
        self.outside_paths: list[str] = table.get("outside", {}).get("path", [])
        self.outside_suffixes = tuple(table.get("outside", {}).get("suffix", []))
        self.faults: list[str] = []
        known: set[str] = set()
        for name, layer in self.layers.items():
            for lower in layer["layers"]:
                if lower not in known:
                    self.faults.append(f"layers.toml: {name} names {lower}, which no earlier row defines")
            for group in layer["third_party"]:
                if group not in self.third_party:
                    self.faults.append(f"layers.toml: {name} names the unknown third-party group {group}")
            if layer["system"] not in SYSTEM_RANKS:
                self.faults.append(f"layers.toml: {name} has the unknown system level {layer['system']}")
            known.add(name)

    def layer_of(self, path: str) -> str | None:
        """The layer of a path relative to the root, None if it is in none."""
        for name, layer in self.layers.items():
            if any(path.startswith(folder + "/") for folder in layer["path"]):
                return name
        return None

    def is_outside(self, path: str) -> bool:
        """True for tests and benchmarks, which may include anything."""
        return path.endswith(self.outside_suffixes) or any(
            path.startswith(folder + "/") for folder in self.outside_paths
        )


def system_level(header: str) -> str:
    """Which kind of system header an <include> names."""
    if header.startswith(("linux/", "asm/", "asm-generic/")):
        return "kernel"
    if "/" not in header and not header.endswith(".h"):
        return "std"
    return "posix"


def find_target(root: Path, source: Path, header: str) -> str | None:
    """The project file an include means, relative to the root; None if it is none of ours."""
    candidates = [source.parent / header, root / "src" / header, root / "include" / header, root / header]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve().relative_to(root.resolve()).as_posix()
    return None


def check_include(rules: Rules, root: Path, path: str, layer_name: str, spelled: str) -> str | None:
    """What is wrong with one include of one file, or None."""
    layer = rules.layers[layer_name]
    quoted = spelled.startswith('"')
    if not quoted and not spelled.startswith("<"):
        return f"includes {spelled} through a macro, which cannot be checked"
    header = spelled[1:-1]
    if quoted or header.startswith("headrace/"):
        target = find_target(root, root / path, header)
        if target is None and header == "headrace/version.h":  # written by CMake
            target = "include/headrace/version.h"
        if target is None:
            return f"includes {spelled}, which is no file of this tree (third-party headers take <>)"
        if rules.is_outside(target):
            return f"includes {spelled}, which belongs to the tests"
        target_layer = rules.layer_of(target)
        if target_layer is None:
            return f"includes {spelled}, which is in no layer"
        if target_layer != layer_name and target_layer not in layer["layers"]:
            return f"includes {spelled}: {layer_name} may not include {target_layer}"
        return None
    for group, prefixes in rules.third_party.items():
        if any(header == p or (p.endswith("/") and header.startswith(p)) for p in prefixes):
            if group in layer["third_party"]:
                return None
            return f"includes {spelled}: {layer_name} may not include {group}"
    level = system_level(header)
    if SYSTEM_RANKS[level] <= SYSTEM_RANKS[layer["system"]]:
        return None
    return f"includes {spelled}: {layer_name} may include {layer['system']} headers, not {level} ones"


def check(root: Path, table: dict | None = None) -> list[str]:
    """Every offence under root, as lines."""
    if table is None:
        table = tomllib.loads((root / "tools/tidy/layers.toml").read_text(encoding="utf-8"))
    rules = Rules(table)
    faults = list(rules.faults)
    if faults:
        return faults
    folders = {folder.split("/")[0] for layer in rules.layers.values() for folder in layer["path"]}
    for file in sorted(f for folder in folders for f in (root / folder).rglob("*")):
        if file.suffix not in {".h", ".cc", ".hpp", ".cpp", ".c", ".inc"}:
            continue
        path = file.relative_to(root).as_posix()
        if rules.is_outside(path):
            continue
        layer_name = rules.layer_of(path)
        if layer_name is None:
            faults.append(f"{path}:1: is in no layer of tools/tidy/layers.toml")
            continue
        text = strip_comments(file.read_text(encoding="utf-8"))
        for match in INCLUDE.finditer(text):
            fault = check_include(rules, root, path, layer_name, match[1])
            if fault:
                faults.append(f"{path}:{text.count(chr(10), 0, match.start(1)) + 1}: {fault}")
    return faults


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[2])
    faults = check(root)
    for fault in faults:
        print(fault)
    print(f"lint: layers: {len(faults)} faults" if faults else "lint: layers: ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
