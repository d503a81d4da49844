# SPDX-License-Identifier: Apache-2.0
"""The functions of the package safetensors (0.8) over headrace: the same arguments, defaults and results.

    from headrace.safetensors import safe_open, save_file, load_file

stands for the functions of these names in safetensors.torch and for safetensors.safe_open. Files are written
whole or not at all, and checked as docs/formats/safetensors.md says. SafetensorError is another name for
headrace.TransferError, of which FormatError (a damaged file) is one kind. Any thread may call. torch is
imported when it is needed.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ._bounds import extent_of
from ._default import default_handle
from ._errors import FormatError, TransferError
from ._load import view_of
from ._safe_open import CODES, by_offset, open_safetensors, safe_open, torch_layout
from ._save import PackedTensor, metadata_pairs, packed_tensor, save_packed

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from ._device import DeviceMemory
    from ._types import Durability, Path

__all__ = [
    "SafetensorError",
    "load",
    "load_file",
    "load_model",
    "safe_open",
    "save",
    "save_file",
    "save_model",
]

SafetensorError = TransferError

_RANKS = {dtype: rank for rank, dtype in enumerate(CODES)}
_HEADER_BYTES_MAX = 100_000_000


def save_file(
    tensors: dict[str, torch.Tensor],
    filename: Path,
    metadata: dict[str, str] | None = None,
    *,
    durability: Durability = "data",
) -> None:
    """Saves a dict of tensors as a safetensors file, whole or not at all.

    Tensors on other devices are copied to the host. Refused by name are what is no tensor, sparse or not
    contiguous (ValueError) and tensors that share memory (RuntimeError); ``headrace.save`` stores copies of
    the last two. ``metadata``: texts for the header. ``durability="none"`` skips the syncs: after a power
    cut the file may be empty or torn. Do not change the tensors while it runs. Raises SafetensorError for
    what the system refuses.
    """
    from ._device import DeviceMemory

    device = DeviceMemory()
    packed = _checked(tensors, device)
    save_packed(packed, device, filename, metadata_pairs(metadata), durability, default_handle())


def save(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of the file that save_file would write; it refuses the same."""
    import ctypes

    packed = _checked(tensors, None)
    texts = metadata_pairs(metadata)
    header: dict[str, Any] = {} if texts is None else {"__metadata__": dict(texts)}
    contents: list[Any] = []
    begin = 0
    for name, dtype, shape, address, nbytes in sorted(
        (one.stored for one in packed), key=lambda one: (_RANKS.get(one[1], -1), one[0].encode())
    ):
        if dtype not in CODES:
            raise ValueError(f"tensor {name!r} is {dtype}, which safetensors cannot hold")
        if name == "__metadata__":
            raise ValueError("no tensor can be called '__metadata__': no reader would find it")
        end = begin + nbytes
        header[name] = {"dtype": CODES[dtype], "shape": shape, "data_offsets": [begin, end]}
        if nbytes:
            contents.append((ctypes.c_char * nbytes).from_address(address))
        begin = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_BYTES_MAX:
        raise ValueError(f"the header would have {len(text)} bytes; readers allow {_HEADER_BYTES_MAX}")
    return b"".join([len(text).to_bytes(8, "little"), text, *contents])


def load_file(
    filename: Path, device: str | int | torch.device | None = "cpu", *, backend: str = "mmap"
) -> dict[str, torch.Tensor]:
    """Loads a safetensors file: a dict from names to tensors, in the order of their bytes.

    Everything is read into host memory on huge pages, and a tensor for another ``device`` copied there by
    ``Tensor.to``. ``backend`` is checked and makes no difference. Raises FormatError for a damaged file,
    FileNotFoundError and other SafetensorErrors for what the system refuses.
    """
    with safe_open(filename, "pt", device, backend=backend) as opened:
        tensors: dict[str, torch.Tensor] = opened.get_tensors()
    return tensors


def load(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file that is in memory, each in memory of its own."""
    import torch

    view = memoryview(data).cast("B")
    # One parser for files and bytes, so that both get the same verdict: it is shown a file of this length and
    # this header, and does not look at what is behind it.
    head = min(len(view), 8 + min(int.from_bytes(view[:8], "little"), _HEADER_BYTES_MAX))
    descriptor = os.memfd_create("safetensors", os.MFD_CLOEXEC)
    path = f"/proc/self/fd/{descriptor}"
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(view[:head])
        os.ftruncate(descriptor, len(view))
        opened = open_safetensors(path)
    except FormatError as error:
        error.filename, error._message = None, str(error).replace(path, "<bytes>")
        raise
    finally:
        os.close(descriptor)
    ranges = [one[1:3] for one in opened.storages()]
    loaded = {}
    for facts in by_offset(opened):
        _, shape, strides = torch_layout(facts)
        begin, nbytes = ranges[facts[4]]
        if nbytes:
            flat = torch.frombuffer(bytearray(view[begin : begin + nbytes]), dtype=torch.uint8)
            whole = flat.untyped_storage()
        else:
            whole = torch.UntypedStorage(0, device="cpu")
        loaded[facts[0]] = view_of(whole, facts[1], 0, shape, strides)
    return loaded


def save_model(
    model: torch.nn.Module,
    filename: Path,
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
    *,
    durability: Durability = "data",
) -> None:
    """Saves the state dict of a module; of tensors that share memory one that covers all of it.

    The metadata get the name of each tensor left out, with the name of the one that stands for it, unless
    they have that name already. ``force_contiguous``: pack the tensors; False refuses those with strides.
    Raises RuntimeError where no tensor covers the memory that some share; otherwise as save_file.
    """
    state = dict(model.state_dict())
    texts = dict(metadata) if metadata is not None else {}
    for kept, others in _stand_ins(state, ()).items():
        for name in others:
            texts.setdefault(name, kept)
            del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(state, filename, texts if texts or metadata is not None else None, durability=durability)


def load_model(
    model: torch.nn.Module,
    filename: Path,
    strict: bool = True,
    device: str | int | torch.device | None = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Loads a file of save_model into a module: (names not found in the file, names that it has too many).

    ``strict=True`` raises RuntimeError when there are any. ``device`` and ``backend`` as in load_file.
    """
    state = load_file(filename, device, backend=backend)
    stand_ins = _stand_ins(model.state_dict(), state)
    lost, unexpected = model.load_state_dict(state, strict=False)
    missing = set(lost)
    for others in stand_ins.values():
        for name in others:
            if name in missing:
                missing.remove(name)
            else:
                unexpected.append(name)
    if strict and (missing or unexpected):
        # In the words of Module.load_state_dict, which programs look for.
        lines = [f"{os.fsdecode(filename)!r} does not fit {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                quoted = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"{what} key(s) in state_dict: {quoted}")
        raise RuntimeError("\n    ".join(lines))
    return missing, unexpected


def _checked(tensors: dict[str, torch.Tensor], device: DeviceMemory | None) -> list[PackedTensor]:
    """The tensors on the host, once the package too would save them."""
    import torch

    if not isinstance(tensors, dict):
        raise ValueError(f"a safetensors file holds a dict of tensors, not a {type(tensors).__name__}")
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"a safetensors file holds tensors, and {name!r} is a {type(value).__name__}")
        if value.is_meta:
            raise NotImplementedError(f"tensor {name!r} is on the device meta: it has no data to save")
    sparse = [name for name, value in tensors.items() if value.layout != torch.strided]
    if sparse:
        raise ValueError(f"sparse tensors cannot be saved: {sparse}; .to_dense() makes them dense")
    shared = [sorted(names) for names in _overlapping(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(
            f"tensors share memory, and would be written several times and loaded apart: {shared}; "
            "save_model writes them once, headrace.save writes copies"
        )
    packed = []
    for name, value in tensors.items():
        if not value.is_nested and not value.is_contiguous():
            raise ValueError(
                f"tensor {name!r} is not contiguous: pack it by .contiguous(), or save what it is a view of, "
                "or use save_model(..., force_contiguous=True) or headrace.save, which pack it"
            )
        packed.append(packed_tensor(name, value, device))
    return packed


def _overlapping(tensors: dict[str, torch.Tensor]) -> list[set[str]]:
    """Names by the memory that they share; most sets have one name."""
    by_storage: dict[Any, list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        if tensor.is_meta or tensor.is_nested:
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() and storage.nbytes():
            by_storage[tensor.device, storage.data_ptr(), storage.nbytes()].append(name)
    found: list[set[str]] = []
    for names in by_storage.values():
        behind = None
        for begin, end, name in sorted((*extent_of(tensors[name]), name) for name in names):
            if behind is None or begin >= behind:
                found.append({name})
            else:
                found[-1].add(name)
            # Not the furthest end so far: a file has to keep the views that the package keeps.
            behind = end
    return found


def _stand_ins(tensors: dict[str, torch.Tensor], preferred: Iterable[str]) -> dict[str, list[str]]:
    """Of each set of tensors that share memory the one that stands for all, and the names of the others."""
    result: dict[str, list[str]] = {}
    wanted = set(preferred)
    for names in _overlapping(tensors):
        if len(names) < 2:
            continue
        whole = {name for name in names if _covers_its_storage(tensors[name])}
        if not whole:
            raise RuntimeError(
                f"the tensors {sorted(names)} share memory, and none of them covers all of it, so none can "
                "stand for all; give each memory of its own by .clone()"
            )
        kept = min(whole & wanted or whole)
        result[kept] = sorted(names - {kept})
    return result


def _covers_its_storage(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    nbytes = tensor.numel() * tensor.element_size()
    return bool(tensor.data_ptr() == storage.data_ptr() and nbytes == storage.nbytes())
