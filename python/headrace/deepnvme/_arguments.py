# SPDX-License-Identifier: Apache-2.0
"""The arguments of DeepSpeed's calls, checked: what it would take silently, or abort on, raises here."""

from __future__ import annotations

import os
import sys
from operator import index
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from headrace._types import Path

INT64_MAX = (1 << 63) - 1


def count(name: str, value: object, minimum: int) -> int:
    """``value`` as an int of at least ``minimum``.

    TypeError for what is no integer, ValueError for what is out of range.
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if not minimum <= number <= INT64_MAX:
        raise ValueError(f"{name} is {number}; allowed: {minimum} to 2**63 - 1")
    return number


def flag(name: str, value: object) -> bool:
    """The truth of a bool or number;

    TypeError for what has none of its own, such as None or the string "false".
    """
    if value is None or not hasattr(type(value), "__bool__"):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def tensor(name: str, value: object) -> torch.Tensor:
    """``value``, if it is a torch tensor; else TypeError. Does not import torch."""
    module = sys.modules.get("torch")
    if module is None or not isinstance(value, module.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, not {type(value).__name__}")
    return value


def path(value: object) -> Path:
    """``value``, if it names a file:

    str, bytes or PathLike. TypeError for anything else, descriptors included.
    """
    if isinstance(value, (str, bytes, os.PathLike)):
        return value
    hint = "; only async_pwrite takes a descriptor" if isinstance(value, int) else ""
    raise TypeError(f"filename must be a str, bytes or PathLike, not {type(value).__name__}{hint}")


def nbytes(value: torch.Tensor) -> int:
    """The bytes of a tensor's elements."""
    size: int = value.numel() * value.element_size()
    return size


def take_async(method: str, positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[bool, int]:
    """The arguments ``async`` and ``file_offset`` of pread and pwrite:

    no parameter of a Python function can have that first name.
    """
    names = ("async", "file_offset")
    if len(positional) > len(names):
        raise TypeError(f"{method}() takes 4 or 5 arguments but {3 + len(positional)} were given")
    given: dict[str, Any] = dict(zip(names, positional, strict=False))
    for name, value in named.items():
        if name not in names:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        if name in given:
            raise TypeError(f"{method}() got multiple values for argument {name!r}")
        given[name] = value
    if "async" not in given:
        raise TypeError(f"{method}() missing the argument 'async'")
    return flag("async", given["async"]), given.get("file_offset", 0)
