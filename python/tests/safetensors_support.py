# SPDX-License-Identifier: Apache-2.0
"""What the tests of headrace.safetensors share: tensors of every type, comparisons, files made by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch

# What torch calls the element types, and what the format does.
CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32",
    "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
}  # fmt: skip
DTYPES = [name for name in CODES if hasattr(torch, name)]
IN_NUMPY = [name for name in DTYPES if not name.startswith(("bfloat", "float8", "float4"))]


def tensor_of(dtype: str, *shape: int) -> Any:
    """Every byte differs from its neighbours; of bool 0 and 1."""
    kind = getattr(torch, dtype)
    nbytes = torch.Size(shape).numel() * kind.itemsize
    values = torch.arange(nbytes, dtype=torch.int64) * 7 + 1
    return (values % (2 if dtype == "bool" else 251)).to(torch.uint8).view(kind).reshape(shape)


def raw(tensor: Any) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy().tobytes()) if plain.numel() else b""


def same(one: Any, other: Any, what: object = "") -> None:
    assert isinstance(one, torch.Tensor), what
    assert (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device), what
    assert one.stride() == other.stride(), what
    assert not one.requires_grad, what
    assert raw(one) == raw(other), what


def same_dicts(one: dict[str, Any], other: dict[str, Any], ordered: bool = True) -> None:
    assert (list(one) == list(other)) if ordered else (one.keys() == other.keys())
    for name in one:
        same(one[name], other[name], name)


def by_hand(path: Path, header: str | bytes | dict[str, Any], data: bytes = b"") -> Path:
    """A file with this header, whatever is in it."""
    text = json.dumps(header) if isinstance(header, dict) else header
    encoded = text.encode() if isinstance(text, str) else text
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    return path


def entry(dtype: str, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
