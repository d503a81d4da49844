# SPDX-License-Identifier: Apache-2.0
"""Which files make up a checkpoint that is named by a folder, an index or the common start of their names."""

from __future__ import annotations

import itertools
import json
import os
import re
from typing import Any

from ._errors import FormatError

_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_INDEX = ".index.json"
_PART = re.compile(r"-(\d+)-of-(\d+)(\.[a-z]+)$")
# What may follow the common start of the names of a checkpoint's files, and of its index.
_REST = re.compile(r"(-\d+-of-\d+)?\.[a-z]+$")
_INDEX_REST = re.compile(r"(\.[a-z]+)?\.index\.json$")
_INDEX_BYTES_MAX = 1 << 30


def find_shards(path: str) -> tuple[list[str], dict[str, str] | None]:
    """The files, and from an index the file of each tensor; one ordinary file is that file alone.

    Raises ValueError where it cannot be told which files belong together: a checkpoint saved over another
    with other parts leaves both lying there.
    """
    if os.path.isdir(path):
        return _of_folder(path)
    if path.endswith(_INDEX) and os.path.isfile(path):
        return _of_index(path)
    if os.path.lexists(path):
        return [path], None
    folder, start = os.path.split(path)
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        names = []
    rests = {n: n[len(start) :] for n in names if start and n.startswith(start)}
    found = [
        os.path.join(folder, n) for n, rest in rests.items() if _REST.match(rest) and n.endswith(_SUFFIXES)
    ]
    indices = [os.path.join(folder, n) for n, rest in rests.items() if _INDEX_REST.match(rest)]
    if len(indices) > 1:
        raise ValueError(f"{path!r} begins the names of several indices: {_names(indices)}; name one of them")
    if indices:
        return _of_index(indices[0], found)
    if not found:
        return [path], None  # opening it tells why it is not there
    return _complete(found, path), None


def _of_folder(path: str) -> tuple[list[str], dict[str, str] | None]:
    names = sorted(os.listdir(path))
    indices = [os.path.join(path, name) for name in names if name.endswith(_INDEX)]
    files = [os.path.join(path, name) for name in names if name.endswith(_SUFFIXES)]
    if len(indices) == 1:
        return _of_index(indices[0], files)
    if indices:
        raise ValueError(f"{path!r} has several indices: {_names(indices)}; name one of them")
    # Weights in both forms are often shipped side by side.
    safe = [file for file in files if file.endswith(".safetensors")]
    chosen = safe or files
    if not chosen:
        raise FileNotFoundError(2, f"no file ends in {', '.join(_SUFFIXES)} in this folder", path)
    return _complete(chosen, path), None


def _of_index(path: str, beside: list[str] | None = None) -> tuple[list[str], dict[str, str]]:
    def broken(what: str) -> FormatError:
        error = FormatError(None, f"index {path!r}: {what}", path)
        error._message = f"index {path!r}: {what}"
        return error

    if not os.path.isfile(path):
        raise broken("it is no ordinary file")
    if os.path.getsize(path) > _INDEX_BYTES_MAX:
        raise broken("it is larger than 1 GiB")
    try:
        with open(path, encoding="utf-8") as file:
            index: Any = json.load(file)
    except (ValueError, RecursionError) as reason:
        raise broken(f"it is no JSON: {reason}") from reason
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not all(isinstance(value, str) for value in names.values()):
        raise broken("it has no weight_map from names to files")
    folder = os.path.dirname(path)
    for name in set(names.values()):
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise broken(f"it names {name!r}, which is not a file beside it")
        if not os.path.isfile(os.path.join(folder, name)):
            raise broken(f"it names {name!r}, which is not there")
    files = sorted(os.path.join(folder, name) for name in set(names.values()))
    suffixes = {os.path.splitext(file)[1] for file in files}
    extra = [file for file in beside or [] if file not in files and os.path.splitext(file)[1] in suffixes]
    if extra:
        raise ValueError(
            f"beside the files of {path!r} there is {os.path.basename(extra[0])!r}, which the index does not "
            "name: one of them is left over from another checkpoint. Name the index itself, or the file"
        )
    return files, {name: os.path.join(folder, file) for name, file in names.items()}


def _complete(files: list[str], path: str) -> list[str]:
    """One file, or the parts if all of one set are there and nothing else is."""
    parts = [_PART.search(os.path.basename(file)) for file in files]
    if len(files) == 1 and not parts[0]:
        return files
    sets = {(match.string[: match.start()], match[2], match[3]) if match else None for match in parts}
    if len(sets) != 1 or None in sets:
        raise ValueError(
            f"{path!r} stands for files of several checkpoints: {_names(files)}; name one of them"
        )
    total = int(next(match[2] for match in parts if match))
    numbers = {int(match[1]) for match in parts if match}
    first = 0 if 0 in numbers else 1
    missing = next(number for number in itertools.count(first) if number not in numbers)
    if missing < first + total:
        raise ValueError(
            f"{path!r}: {len(numbers)} of {total} parts are there ({_names(files)}); number {missing} is "
            "missing"
        )
    if len(files) != total:
        raise ValueError(f"{path!r} stands for parts of several checkpoints: {_names(files)}")
    return files


def _names(files: list[str]) -> str:
    shown = ", ".join(map(os.path.basename, files[:8]))
    return shown if len(files) <= 8 else f"{shown} and {len(files) - 8} more"
