# SPDX-License-Identifier: Apache-2.0
"""safe_open of headrace.safetensors: tensors of a safetensors file, and parts of them, for torch or numpy."""

from __future__ import annotations

import math
import os
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from ._core import CheckpointFile
from ._default import default_handle
from ._errors import ClosedError, FormatError, InvalidRequestError
from ._load import _storages, torch_shape, view_of
from ._slices import leading_run

if TYPE_CHECKING:
    import torch

    from ._types import Path

# What the format calls the element types, in the order in which it stores them.
CODES = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "float6_e3m2fn": "F6_E3M2",
    "float6_e2m3fn": "F6_E2M3",
    "float4_e2m1fn_x2": "F4",
    "bool": "BOOL",
}


def open_safetensors(path: Path) -> CheckpointFile:
    file = CheckpointFile(default_handle(), path, "auto")
    if file.format != "safetensors":
        raise FormatError(
            f"{path!r} is no safetensors file; headrace.load reads it, as format {file.format!r}"
        )
    return file


def by_offset(file: CheckpointFile) -> list[tuple[Any, ...]]:
    """Facts about every tensor, in the order of the bytes."""
    ranges = [(one[1], one[1] + one[2]) for one in file.storages()]
    return sorted(file.tensors(), key=lambda one: ranges[one[4]])


def torch_layout(facts: tuple[Any, ...]) -> tuple[torch.dtype, list[int], list[int]]:
    """Element type, shape and strides of a tensor in torch. InvalidRequestError if torch has none such."""
    from ._torch_unpickle import dtype_of

    name, dtype, shape, strides, *_ = facts
    try:
        return (dtype_of(dtype), *torch_shape(dtype, shape, strides))
    except ValueError as error:
        raise InvalidRequestError(f"tensor {name!r}: {error}") from None


class safe_open:  # noqa: N801  (the name that the package has given it)
    """A safetensors file, opened to read tensors and parts of them; leaving its ``with`` block closes it.

        with safe_open("model.safetensors", framework="pt") as f:
            f.keys(); f.get_tensor("a"); f.get_slice("b")[10:20]

    ``framework``: "pt" ("torch", "pytorch") or "np" ("numpy"), where a type that numpy lacks raises TypeError
    unless a package such as ml_dtypes has added it. ``device``: tensors for another device than "cpu" are
    read into host memory and copied there by ``Tensor.to``. ``backend``, "mmap" or "pread", makes no
    difference: bytes are read when they are asked for. Raises FormatError for a damaged file,
    FileNotFoundError and other SafetensorErrors for what the system refuses.
    """

    def __init__(
        self,
        filename: Path,
        framework: str,
        device: str | int | torch.device | None = "cpu",
        *,
        backend: str = "mmap",
    ) -> None:
        if not isinstance(framework, str):
            raise TypeError(f"framework must be a str, not {type(framework).__name__}")
        if backend not in ("mmap", "pread"):
            raise InvalidRequestError(f"backend must be 'mmap' or 'pread', not {backend!r}")
        if framework not in ("pt", "torch", "pytorch", "np", "numpy"):
            raise InvalidRequestError(f"framework must be 'pt' or 'np', not {framework!r}")
        self._is_numpy = framework in ("np", "numpy")
        self._device = _checked_device(device, self._is_numpy)
        self._file: CheckpointFile | None = open_safetensors(filename)
        self._name = os.fsdecode(filename)
        self._facts = {facts[0]: facts for facts in by_offset(self._file)}

    def _opened(self) -> CheckpointFile:
        if self._file is None:
            raise ClosedError(f"{self._name!r} is closed")
        return self._file

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self.offset_keys())

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their bytes."""
        self._opened()
        return list(self._facts)

    def metadata(self) -> dict[str, str] | None:
        """The texts of the header, None if it has none."""
        return self._opened().metadata

    def _find(self, name: str) -> tuple[Any, ...]:
        self._opened()
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is a str, not {type(name).__name__}")
        if name not in self._facts:
            raise InvalidRequestError(f"{self._name!r} does not contain a tensor {name!r}")
        return self._facts[name]

    def get_tensor(self, name: str) -> Any:
        """The tensor of this name. SafetensorError if there is none."""
        return self._read([self._find(name)])[0]

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, in the order of their bytes, with one bulk read."""
        self._opened()
        return dict(zip(self._facts, self._read(list(self._facts.values())), strict=True))

    def get_slice(self, name: str) -> SafeSlice:
        """The tensor of this name, to be indexed; reads nothing yet. SafetensorError if there is none."""
        return SafeSlice(self, self._opened(), self._find(name))

    def _read(self, wanted: list[tuple[Any, ...]]) -> list[Any]:
        file = self._opened()
        numbers = [one[4] for one in wanted]
        if self._is_numpy:
            return _numpy_arrays(file, wanted)
        layouts = [torch_layout(one) for one in wanted]
        storages = _storages(file, numbers, "auto", False, default_handle())
        return [
            self._placed(view_of(storage, facts[1], 0, shape, strides))
            for storage, facts, (_, shape, strides) in zip(storages, wanted, layouts, strict=True)
        ]

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._device is None else tensor.to(self._device)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file = None

    def __repr__(self) -> str:
        state = ", closed" if self._file is None else ""
        return f"<headrace.safetensors.safe_open of {self._name!r}{state}>"


class SafeSlice:
    """A tensor in a file, from safe_open.get_slice. Indexing it reads what is needed."""

    def __init__(self, opened: safe_open, file: CheckpointFile, facts: tuple[Any, ...]) -> None:
        self._opened = opened
        self._file = file
        self._facts = facts

    def get_shape(self) -> list[int]:
        """As the file says it; of packed 4-bit elements that is twice what torch counts."""
        return list(self._facts[2])

    def get_dtype(self) -> str:
        """As the file says it: "F32", "BF16" and so on."""
        return CODES[self._facts[1]]

    def __getitem__(self, index: Any) -> Any:
        """What the whole tensor gives for this index, on the device of the file.

        Reads only the rows that numbers and a slice at the front of the index ask for, from the first of them
        to the last. IndexError as torch and numpy raise it, ValueError for a step below 1.
        """
        if self._opened._is_numpy:
            return self._numpy_part(index)
        import torch

        kind, shape, _ = torch_layout(self._facts)
        first, run_shape, rest = leading_run(index, shape)
        part = torch.empty(run_shape, dtype=kind, device="cpu")
        if part.nbytes:
            target = (self._facts[4], first * kind.itemsize, part.data_ptr(), part.nbytes)
            self._file.read(default_handle(), [target], "auto")
        return self._opened._placed(part[rest])

    def _numpy_part(self, index: Any) -> Any:
        import numpy

        name, dtype, shape, _, storage, *_ = self._facts
        kind = _numpy_dtype(dtype, name)
        parts = index if isinstance(index, tuple) else (index,)
        for one in parts:
            if isinstance(one, slice) and one.step is not None and one.step < 1:
                raise ValueError("step must be greater than zero")
        # numpy counts numbers beside lists as lists, which moves dimensions: those are left to it.
        simple = (int, numpy.integer, slice, EllipsisType, type(None))
        plain = all(isinstance(one, simple) and not isinstance(one, bool) for one in parts)
        first, run_shape, rest = leading_run(index, shape) if plain else (0, shape, index)
        part = numpy.empty(run_shape, dtype=kind)
        if part.nbytes:
            target = (storage, first * kind.itemsize, part.ctypes.data, part.nbytes)
            self._file.read(default_handle(), [target], "auto")
        return numpy.asarray(part[rest])

    def __repr__(self) -> str:
        kind = f"{self.get_dtype()}, shape {self.get_shape()}"
        return f"<headrace.safetensors.SafeSlice {self._facts[0]!r}: {kind}>"


def _checked_device(device: Any, is_numpy: bool) -> torch.device | None:
    """None for the host."""
    if device is None or device == "cpu":
        return None
    if is_numpy:
        raise InvalidRequestError(f"numpy arrays are on the device 'cpu', not {device!r}")
    import torch

    try:
        found = torch.device(device)
    except RuntimeError as error:
        if not isinstance(device, str):
            raise
        raise InvalidRequestError(f"torch has no device {device!r}: {error}") from None
    if found.type == "meta":
        raise InvalidRequestError(
            "device 'meta' holds no data; headrace.load(path, map_location='meta') makes such tensors"
        )
    return None if found.type == "cpu" else found


def _numpy_dtype(dtype: str, name: str) -> Any:
    import numpy

    if dtype != "float4_e2m1fn_x2":  # ml_dtypes has it unpacked, a byte for each
        try:
            return numpy.dtype(dtype)
        except TypeError:
            pass
    raise TypeError(f"tensor {name!r} is {dtype}, a type that numpy does not have")


def _numpy_arrays(file: CheckpointFile, wanted: list[tuple[Any, ...]]) -> list[Any]:
    import numpy

    kinds = [_numpy_dtype(one[1], one[0]) for one in wanted]
    places, memory = file.load(default_handle(), [one[4] for one in wanted], "auto")
    arrays = []
    for kind, facts, (block, offset, nbytes) in zip(kinds, wanted, places, strict=True):
        shape = facts[2]
        if nbytes:
            flat = numpy.frombuffer(memory[block], dtype=kind, count=math.prod(shape), offset=offset)
            arrays.append(flat.reshape(shape))
        else:
            arrays.append(numpy.empty(shape, dtype=kind))
    return arrays
