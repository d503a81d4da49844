# SPDX-License-Identifier: Apache-2.0
"""Names for the types of arguments, for type checkers; nothing here is imported when headrace runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, Union

if TYPE_CHECKING:
    from ._core import AtomicFile, File


class SupportsBuffer(Protocol):
    """bytes, bytearray, memoryview, array, mmap, numpy arrays, headrace.Buffer."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class SupportsDLPack(Protocol):
    """torch tensors, numpy arrays, and those of other frameworks."""

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


Path: TypeAlias = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
FileLike: TypeAlias = Union[Path, int, "File", "AtomicFile"]
OneMemory: TypeAlias = SupportsBuffer | SupportsDLPack
Memory: TypeAlias = OneMemory | Sequence[OneMemory]
Item: TypeAlias = tuple[FileLike, Memory] | tuple[FileLike, Memory, int]

Engine: TypeAlias = Literal["auto", "uring", "aio", "posix", "null"]
Ladder: TypeAlias = Literal["auto", "never", "required"]
Pages: TypeAlias = Literal["transparent", "reserved", "small"]
FileMode: TypeAlias = Literal["read", "update", "create", "truncate"]
FileWriteMode: TypeAlias = Literal["update", "create", "truncate"]
WriteMode: TypeAlias = Literal["update", "create", "truncate", "replace"]
CheckpointFormat: TypeAlias = Literal["torch", "torch-legacy", "safetensors"]
Verify: TypeAlias = Literal["auto", "require", "off"]
Durability: TypeAlias = Literal["none", "data"]
Copy: TypeAlias = Literal["auto", "always", "never"]
Cache: TypeAlias = Literal["auto", "use", "bypass"]

# For _core.save_*: see headrace/_device.py.
DeviceCopy: TypeAlias = tuple[int, int, Callable[[int, int, int], object]]
