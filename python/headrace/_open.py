# SPDX-License-Identifier: Apache-2.0
"""headrace.open: a checkpoint file as a dict from names to tensors that are read when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ._core import CheckpointFile
from ._default import default_handle
from ._load import _storages, torch_shape, view_of
from ._slices import leading_run
from ._torch_unpickle import dtype_of

if TYPE_CHECKING:
    from ._core import Handle
    from ._types import Path, Verify

Index: TypeAlias = Any  # whatever indexes a torch tensor


class StoredTensor:
    """A tensor in a file. Indexing reads what is needed of it: ``f["layer.0.weight"][10:20]``."""

    def __init__(self, opened: Checkpoint, facts: tuple[Any, ...]) -> None:
        self._opened = opened
        self.name: str
        self.name, dtype, shape, strides, self._storage, self._offset, _, self._contiguous, _, _ = facts
        self.dtype = dtype_of(dtype)
        if opened.format == "safetensors":
            shape, strides = torch_shape(dtype, shape, strides)
        self.shape = torch.Size(shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return int(self.shape.numel() * self.dtype.itemsize)

    def __repr__(self) -> str:
        return f"<headrace.StoredTensor {self.name!r}: {str(self.dtype)[6:]}, shape {list(self.shape)}>"

    def load(self) -> torch.Tensor:
        """All of it. Of a zip container its record is verified, as in headrace.load."""
        return self._opened.read([self.name])[self.name]

    def __getitem__(self, index: Index) -> torch.Tensor:
        """As indexing the loaded tensor. Leading numbers and slices narrow down what is read."""
        if not self._contiguous or self.nbytes == 0:
            return self.load()[index]
        first, shape, rest = leading_run(index, list(self.shape))
        part = torch.empty(shape, dtype=self.dtype, device="cpu")
        if part.nbytes == self.nbytes:
            return self.load()[index]
        if part.nbytes:
            self._opened._read_into(self._storage, self._offset + first * self.dtype.itemsize, part)
        return part[rest]


class Checkpoint(Mapping[str, StoredTensor]):
    """An opened checkpoint file: names to StoredTensors. Leaving its ``with`` block closes it."""

    def __init__(self, path: Path, verify: Verify, handle: Handle | None) -> None:
        self._handle = handle or default_handle()
        self._file: CheckpointFile | None = CheckpointFile(self._handle, path, verify)
        self._verify = verify
        self.format: str = self._file.format
        """"torch", "torch-legacy" or "safetensors"."""
        self.metadata: dict[str, str] = self._file.metadata or {}
        """Of a safetensors file."""
        if not self._file.little_endian:
            raise ValueError(f"{path!r} was written by a big-endian machine: headrace.load swaps its bytes")
        self._tensors: dict[str, tuple[Any, ...]] = {}
        self._several: set[str] = set()
        for facts in self._file.tensors():
            if self._tensors.setdefault(facts[0], facts) is not facts:
                self._several.add(facts[0])

    def _opened(self) -> CheckpointFile:
        if self._file is None:
            raise ValueError("this checkpoint is closed")
        return self._file

    def _facts(self, name: str) -> tuple[Any, ...]:
        if name in self._several:
            raise ValueError(f"several tensors have keys that make the name {name!r}; see headrace.load")
        facts = self._tensors[name]
        if facts[1].startswith(("qint", "quint")):
            raise ValueError(
                f"tensor {name!r} is quantised, and its scale is in the pickle; see headrace.load"
            )
        return facts

    def _read_into(self, storage: int, offset: int, target: torch.Tensor) -> None:
        self._opened().read(self._handle, [(storage, offset, target.data_ptr(), target.nbytes)], self._verify)

    def __getitem__(self, name: str) -> StoredTensor:
        self._opened()
        return StoredTensor(self, self._facts(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def read(self, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
        """Tensors of these names (all by default), with one bulk read. Those of one storage share memory."""
        file = self._opened()
        wanted = list(self._tensors) if names is None else list(names)
        facts = [self._facts(name) for name in wanted]
        numbers = sorted({one[4] for one in facts})
        storages = dict(
            zip(numbers, _storages(file, numbers, self._verify, False, self._handle), strict=True)
        )
        result = {}
        for name, (_, dtype, shape, strides, storage, offset, _, _, requires_grad, bits) in zip(
            wanted, facts, strict=True
        ):
            layout: tuple[list[int], list[int]] = (shape, strides)
            if self.format == "safetensors":
                layout = torch_shape(dtype, shape, strides)
            tensor = view_of(storages[storage], dtype, offset, *layout, bits)
            result[name] = tensor.requires_grad_() if requires_grad else tensor
        return result

    def close(self) -> None:
        """Lets go of the file; tensors that were read stay. Safe to call twice."""
        self._file = None

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._file is None else ""
        return f"<headrace.Checkpoint of {len(self)} tensors, {self.format}{state}>"


def open(path: Path, *, verify: Verify = "auto", handle: Handle | None = None) -> Checkpoint:
    """Opens a checkpoint file of torch or safetensors; reads its directory and none of its data.

        with headrace.open("model.safetensors") as f:
            f.keys(); f["layer.0.weight"][10:20]; f.read(["a", "b"])

    Tensors of a torch file are named by the keys that lead to them, joined by dots. Nothing in the file is
    run. ``verify`` and ``handle`` as in headrace.load; slices are never verified. Raises FormatError for a
    damaged file, TransferError (an OSError) for what the system refuses.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"path must be str, bytes or os.PathLike, not {type(path).__name__}")
    if os.fsdecode(path).endswith(".index.json"):
        raise ValueError(
            f"{path!r} is an index of several files: headrace.load takes it, and open one of its files"
        )
    return Checkpoint(path, verify, handle)
