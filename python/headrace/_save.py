# SPDX-License-Identifier: Apache-2.0
"""headrace.save. What it needs of torch is imported when it is called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from . import _core
from ._bounds import has_plain_memory, memory_of
from ._default import default_handle, need_torch

if TYPE_CHECKING:
    import torch

    from ._core import Handle
    from ._device import DeviceMemory
    from ._types import CheckpointFormat, Durability, Path

_BY_SUFFIX: dict[str, CheckpointFormat] = {
    ".pt": "torch",
    ".pth": "torch",
    ".bin": "torch",
    ".ckpt": "torch",
    ".safetensors": "safetensors",
}


def _format_of(path: Path, format: CheckpointFormat | None) -> CheckpointFormat:
    if format is not None:
        if format not in ("torch", "torch-legacy", "safetensors"):
            raise ValueError(f"format must be 'torch', 'torch-legacy' or 'safetensors', not {format!r}")
        return format
    suffix = os.path.splitext(os.fsdecode(path))[1].lower()
    try:
        return _BY_SUFFIX[suffix]
    except KeyError:
        raise ValueError(
            f"the suffix {suffix!r} of {os.fsdecode(path)!r} names no format ({', '.join(_BY_SUFFIX)} do); "
            "say format='torch', 'torch-legacy' or 'safetensors'"
        ) from None


def save(
    obj: object,
    path: Path,
    *,
    format: CheckpointFormat | None = None,
    durability: Durability = "data",
    alignment: int = 4096,
    metadata: dict[str, str] | None = None,
    handle: Handle | None = None,
) -> int:
    """Saves ``obj`` under ``path``, whole or not at all; returns the length of the file in bytes.

    ``format``: "torch" (the zip container of torch.save; also by the suffixes .pt .pth .bin .ckpt),
    "torch-legacy" (its older container, for the older element types) or "safetensors" (a dict of tensors).
    An unmodified torch.load, with ``weights_only`` and ``mmap`` too, or the safetensors package reads the
    file. ``obj``: for torch's formats anything that torch.save takes; shared storages are written once.

    The file is written under a temporary name in the same folder, synced and renamed; on any error the old
    file stays. ``durability="none"`` skips the syncs: after a power cut the file may be empty or torn.
    ``metadata``: texts for the header of a safetensors file. ``alignment``: of the records of a zip
    container, a power of two from 64 to 32768; at 4096 loaders read them in place, and each storage takes
    whole pages: thousands of tiny ones make a smaller file at 64, which is torch's own. ``handle``: the
    Handle to write with; by default one that the process shares.

    Do not change the tensors while it runs. Raises TransferError (an OSError) with errno, filename and
    offset; ValueError for objects that the format cannot hold; what pickling raises.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(
            f"path must be str, bytes or os.PathLike, not {type(path).__name__}; for an open file there is "
            "torch.save(obj, file)"
        )
    kind = _format_of(path, format)
    if metadata is not None and kind != "safetensors":
        raise ValueError(f"metadata is for safetensors files, and this is to be one of format {kind!r}")
    if durability not in ("data", "none"):
        raise ValueError(f"durability must be 'data' or 'none', not {durability!r}")
    if not isinstance(alignment, int):
        raise TypeError(f"alignment must be a number of bytes, not {type(alignment).__name__}")
    if not 0 <= alignment < 1 << 32:  # what is left of it, the layout judges
        raise ValueError(f"alignment must be a power of two from 64 to 32768, not {alignment}")
    if handle is not None and not isinstance(handle, _core.Handle):
        raise TypeError(f"handle must be a headrace.Handle or None, not {type(handle).__name__}")
    need_torch("headrace.save")
    handle = handle or default_handle()
    if kind == "torch":
        return _save_torch_zip(obj, path, durability, alignment, handle)
    if kind == "torch-legacy":
        return _save_torch_legacy(obj, path, durability, handle)
    return _save_safetensors(obj, path, metadata, durability, handle)


def _save_torch_zip(obj: object, path: Path, durability: Durability, alignment: int, handle: Handle) -> int:
    import torch  # noqa: F401  (pickle_state looks for its types)

    plain = _core.pickle_state(obj)
    if plain is not None:
        pickle, host = plain  # `host` keeps the bytes until the file is written
        memory = [(storage.data_ptr(), storage.nbytes()) for storage in host]
        return _core.save_torch_zip(handle, path, pickle, memory, durability, alignment)
    from ._device import DeviceMemory
    from ._torch_pickle import Storages, dumps

    storages = Storages()
    pickle = dumps(obj, storages)
    device = DeviceMemory()
    memory = storages.memory(device)
    with device.ready() as copy:
        return _core.save_torch_zip(handle, path, pickle, memory, durability, alignment, copy)


def _save_torch_legacy(obj: object, path: Path, durability: Durability, handle: Handle) -> int:
    from ._device import DeviceMemory
    from ._torch_pickle import LegacyStorages, dumps

    storages = LegacyStorages()
    pickle = dumps(obj, storages)
    device = DeviceMemory()
    memory = [
        (key, nbytes // size, address, nbytes)
        for key, size, (address, nbytes) in zip(
            storages.keys, storages.element_bytes, storages.memory(device), strict=True
        )
    ]
    with device.ready() as copy:
        return _core.save_torch_legacy(handle, path, pickle, memory, durability, copy)


def _save_safetensors(
    obj: object, path: Path, metadata: dict[str, str] | None, durability: Durability, handle: Handle
) -> int:
    if not isinstance(obj, Mapping):
        raise TypeError(f"a safetensors file holds a dict of tensors, not a {type(obj).__name__}")
    texts = metadata_pairs(metadata)
    written = _core.save_safetensors_state(handle, path, obj, texts, durability)
    if written is not None:
        return written
    from ._device import DeviceMemory

    device = DeviceMemory()
    packed = [packed_tensor(name, value, device) for name, value in obj.items()]
    return save_packed(packed, device, path, texts, durability, handle)


class PackedTensor(NamedTuple):
    """Row-major values, and what _core.save_safetensors wants to know of them."""

    plain: torch.Tensor
    stored: tuple[str, str, list[int], int, int]


def save_packed(
    packed: list[PackedTensor],
    device: DeviceMemory,
    path: Path,
    metadata: list[tuple[str, str]] | None,
    durability: Durability,
    handle: Handle,
) -> int:
    """Writes a safetensors file; ``packed`` keeps the bytes until it is written."""
    stored = [one.stored for one in packed]
    with device.ready() as copy:
        return _core.save_safetensors(handle, path, stored, metadata, durability, copy)


def packed_tensor(name: str, value: object, device: DeviceMemory | None = None) -> PackedTensor:
    """A tensor for a safetensors file, whatever its strides. Its values are on the host unless ``device`` has
    a place for them."""
    import torch

    if not isinstance(name, str):
        raise TypeError(f"the names of a safetensors file are texts, and {name!r} is none")
    name.encode()  # lone surrogates: UnicodeEncodeError
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"a safetensors file holds tensors, and {name!r} is a {type(value).__name__}")
    if value.layout != torch.strided or value.is_meta or value.is_quantized or value.is_nested:
        raise ValueError(f"tensor {name!r} has no plain bytes that a safetensors file could hold")
    if has_plain_memory(value):
        memory_of(name, value)
    plain = value.detach().resolve_conj().resolve_neg()
    address = None
    if device and type(plain) is torch.Tensor and plain.is_contiguous():
        begin = plain.storage_offset() * plain.itemsize
        address = device.place(plain.untyped_storage(), begin, plain.nbytes)
    if address is None:
        plain = plain.cpu().contiguous()
        address = plain.data_ptr()
        if address == 0 and plain.nbytes:
            raise ValueError(f"tensor {name!r} has no bytes on the host that could be saved")
    dtype = str(plain.dtype).removeprefix("torch.")
    shape = list(plain.shape)
    if dtype == "float4_e2m1fn_x2":  # two to the byte, and the format counts elements
        if not shape:
            raise ValueError(f"tensor {name!r}: a scalar of packed 4-bit elements cannot be stored")
        shape[-1] *= 2
    return PackedTensor(plain, (name, dtype, shape, address, plain.nbytes))


def metadata_pairs(metadata: dict[str, str] | None) -> list[tuple[str, str]] | None:
    """The texts of a header, checked."""
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping) or not all(
        isinstance(part, str) for pair in metadata.items() for part in pair
    ):
        raise TypeError("metadata must be a dict from str to str")
    for key, value in metadata.items():
        (key + value).encode()  # lone surrogates: UnicodeEncodeError
    return list(metadata.items())
