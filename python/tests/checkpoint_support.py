# SPDX-License-Identifier: Apache-2.0
"""What the tests of checkpoints share: tensors of every type, and a comparison."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

# Every element type of torch that torch.save and torch.load take.
NOT_SAVED = {"bit", *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))}
DTYPES = sorted(
    {
        str(value).removeprefix("torch.")
        for value in vars(torch).values()
        if isinstance(value, torch.dtype) and str(value).removeprefix("torch.") not in NOT_SAVED
    }
)
QUANTISED = {"qint8", "quint8", "qint32", "quint4x2", "quint2x4"}
BITS = {name for name in DTYPES if name.startswith("bits")}


def raw(tensor: Any) -> bytes:
    """The elements of a strided tensor in order, whatever their type."""
    plain = tensor.detach()
    if plain.is_quantized and plain.dtype not in (torch.quint4x2, torch.quint2x4):
        plain = plain.int_repr()
    if plain.is_quantized or str(plain.dtype).removeprefix("torch.") in BITS:
        return bytes(plain.untyped_storage().tolist()) if plain.numel() else b""
    plain = plain.resolve_conj().resolve_neg().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy().tobytes()) if plain.numel() else b""


def parts_of(tensor: Any) -> list[Any]:
    """The dense tensors that a sparse one is made of."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


def assert_same(one: Any, other: Any, path: str = "object") -> None:
    """Types, values, strides and bits; fails with the path to the first difference."""
    assert type(one) is type(other), path
    if isinstance(one, torch.Tensor):
        facts = ["dtype", "requires_grad", "layout", "device", *([] if one.is_nested else ["shape"])]
        assert [getattr(one, f) for f in facts] == [getattr(other, f) for f in facts], path
        assert one.__dict__ == other.__dict__, path
        if one.is_meta:
            return
        if one.is_nested:
            for i, (a, b) in enumerate(zip(one.unbind(), other.unbind(), strict=True)):
                assert_same(a, b, f"{path}.nested{i}")
            return
        if one.layout != torch.strided:
            for i, (a, b) in enumerate(zip(parts_of(one), parts_of(other), strict=True)):
                assert_same(a, b, f"{path}.part{i}")
            return
        assert (one.stride(), one.is_conj(), one.is_neg()) == (
            other.stride(),
            other.is_conj(),
            other.is_neg(),
        ), path
        if one.is_quantized:
            assert one.qscheme() == other.qscheme(), path
            if one.qscheme() == torch.per_tensor_affine:
                assert (one.q_scale(), one.q_zero_point()) == (other.q_scale(), other.q_zero_point()), path
            else:
                assert_same(one.q_per_channel_scales(), other.q_per_channel_scales(), f"{path}.scales")
                assert_same(
                    one.q_per_channel_zero_points(), other.q_per_channel_zero_points(), f"{path}.zeros"
                )
        assert raw(one) == raw(other), path
    elif isinstance(one, dict):
        assert list(one) == list(other), path
        assert getattr(one, "__dict__", None) == getattr(other, "__dict__", None), path
        for key in one:
            assert_same(one[key], other[key], f"{path}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{path}[{i}]")
    elif isinstance(one, torch.nn.Module):
        assert_same(one.state_dict(), other.state_dict(), f"{path}.state_dict()")
    elif isinstance(one, float):
        assert one.hex() == other.hex(), path
    else:
        assert one == other, path


def of_dtype(name: str) -> Any:
    """A tensor of 24 elements of this type, with bits of every kind in it."""
    dtype = getattr(torch, name)
    if name in ("quint4x2", "quint2x4"):
        return torch._empty_affine_quantized([24], scale=0.5, zero_point=1, dtype=dtype)
    if name in QUANTISED:
        return torch.quantize_per_tensor(torch.arange(24.0) / 7, 0.1, 3, dtype)
    if name == "bool":
        return torch.arange(24) % 3 == 0
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (24 * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)


def only(folder: Path, *names: str) -> None:
    """Nothing else is in the folder: no temporary above all."""
    assert sorted(os.listdir(folder)) == sorted(names)
