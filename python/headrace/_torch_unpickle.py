# SPDX-License-Identifier: Apache-2.0
"""From a checked pickle and its storages to the object, by torch's functions. Importing this imports torch.

Source of the rules: torch/serialization.py and torch/_weights_only_unpickler.py of torch 2.6 to 2.13.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import mmap
import os
import pickle
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._core import Buffer, CheckpointFile

MapLocation = Any  # what torch.load takes


def dtype_of(name: str) -> torch.dtype:
    """The torch.dtype of this name; ValueError when this torch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {name}; a newer torch may read this file")
    return found


def storage_of(memory: Buffer) -> torch.UntypedStorage:
    """The bytes of a Buffer, which they keep alive."""
    return torch.from_dlpack(memory).untyped_storage()


def empty_storage() -> torch.UntypedStorage:
    """No bytes, on the host, whatever torch's default device is."""
    return torch.UntypedStorage(0, device="cpu")


def mapped_storage(file: CheckpointFile) -> torch.UntypedStorage:
    """The bytes of a file, mapped; what is written to them stays in this process."""
    if file.file_bytes == 0:
        return empty_storage()
    # By the descriptor: the path may name another file by now, whose bytes are not those that were looked at.
    path = f"/proc/self/fd/{file.fileno()}"
    if os.path.exists(path):
        return torch.UntypedStorage.from_file(path, False, file.file_bytes)
    # Without /proc: this keeps a second descriptor open for as long as the mapping lives.
    mapped = mmap.mmap(file.fileno(), file.file_bytes, access=mmap.ACCESS_COPY)
    return torch.frombuffer(mapped, dtype=torch.uint8).untyped_storage()


def part_of(whole: torch.UntypedStorage, offset: int, nbytes: int) -> torch.UntypedStorage:
    """A storage of part of the bytes of another, which it keeps alive. It cannot be resized."""
    return whole[offset : offset + nbytes]


def aligned(storage: torch.UntypedStorage, dtype: str | None) -> torch.UntypedStorage:
    """A copy in memory of its own, if elements of this type must not lie where the storage does."""
    size = 8 if dtype is None else dtype_of(dtype).itemsize
    return storage if storage.data_ptr() % size == 0 else storage.clone()


def restorer(map_location: MapLocation) -> Callable[[torch.UntypedStorage, str], Any]:
    """Where a storage saved from a device goes: ``map_location`` as in torch.load."""
    restore: Callable[[torch.UntypedStorage, str], Any] = torch.serialization._get_restore_location(
        map_location
    )
    if map_location is None:
        return lambda storage, location: storage if location == "cpu" else restore(storage, location)
    return restore


def leaves_host(map_location: MapLocation, locations: list[str]) -> bool:
    """True if storages saved from these devices go to another one than the CPU. What a function of the caller
    does is not known: False."""
    if callable(map_location):
        return False
    found = set(locations)
    if map_location is None:
        targets: set[Any] = found
    elif isinstance(map_location, dict):
        targets = {map_location.get(one, one) for one in found}
    else:
        targets = {map_location}
    return any(str(one).split(":")[0] not in ("cpu", "meta") for one in targets)


def is_meta(map_location: MapLocation) -> bool:
    """True if tensors are wanted without their data."""
    return isinstance(map_location, (str, torch.device)) and torch.device(map_location).type == "meta"


def on_host(storages: list[Any]) -> contextlib.AbstractContextManager[Any]:
    """For sparse tensors: torch puts them on its default device, and loses them if that is "meta"."""
    default = torch.empty(
        0
    ).device.type  # torch.get_default_device does not see a `with` block before torch 2.7
    if default == "cpu" or any(one.device.type != "cpu" for one in storages):
        return contextlib.nullcontext()
    on_cpu: contextlib.AbstractContextManager[Any] = torch.device("cpu")
    return on_cpu


def typed(storage: torch.UntypedStorage, dtype: str | None) -> torch.storage.TypedStorage:
    """The storage as the functions that rebuild tensors want it."""
    kind = torch.uint8 if dtype is None else dtype_of(dtype)
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=kind, _internal=True)


def _empty_like(storage: torch.storage.TypedStorage, dtype: str | None) -> torch.storage.TypedStorage:
    """Storages without bytes have the type that each reference gives them, as in torch.load."""
    return typed(storage._untyped_storage, dtype)


class _StorageKind:
    """Stands for a storage class of torch in a pickle: names the type of a storage, and nothing else."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype


_REBUILD = "torch._utils._rebuild_tensor_v2"
_RENAMED = {"torch.tensor": "torch._tensor"}


def _resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    if attribute.endswith("Storage") and attribute not in ("UntypedStorage", "TypedStorage"):
        return _StorageKind(torch.uint8)
    try:
        return getattr(importlib.import_module(_RENAMED.get(module, module)), attribute)
    except AttributeError:
        raise ValueError(
            f"torch {torch.__version__} has no {name}, which the file needs; a newer torch may read it"
        ) from None


def _build(instance: Any, state: Any) -> None:
    """BUILD, for the few kinds of objects that the reader lets it act on."""
    if type(instance) is torch.Tensor:
        instance.set_(*state)
    elif hasattr(instance, "__setstate__"):
        instance.__setstate__(state)
    else:
        instance.__dict__.update(state)


def replay(file: CheckpointFile, storages: list[Any]) -> Any:
    """The object of a pickle whose globals are all known: a closed list, nothing else is imported."""
    table = {name: _resolve(name) for name in file.globals(known=True)}
    if _REBUILD in table:
        table[_REBUILD] = _rebuild_tensor
    obj = file.replay(table, storages, _build, _empty_like)
    _validate_sparse()
    return obj


def _rebuild_tensor(
    storage: Any, offset: int, size: Any, stride: Any, requires_grad: bool, hooks: Any, metadata: Any = None
) -> Any:
    """As torch's _rebuild_tensor_v2, without asking for a fake mode at each tensor: most of its time."""
    tensor = torch._utils._rebuild_tensor(storage, offset, size, stride)
    tensor.requires_grad = requires_grad
    if metadata:
        torch._utils.set_tensor_metadata(tensor, metadata)
    tensor._backward_hooks = hooks
    return tensor


def _validate_sparse() -> None:
    validate = getattr(torch._utils, "_validate_loaded_sparse_tensors", None)
    if validate is not None:
        validate()


def refuse_unsafe(file: CheckpointFile) -> None:
    """Raises UnpicklingError for globals that neither torch nor the user has declared safe."""
    allowed = set()
    for one in torch.serialization.get_safe_globals():
        allowed.add(one[1] if isinstance(one, tuple) else f"{one.__module__}.{one.__qualname__}")
    refused = [name for name in file.globals(known=False) if name not in allowed and not _is_dtype(name)]
    if refused:
        raise pickle.UnpicklingError(
            f"{file.name!r} needs {', '.join(refused)}, which weights_only=True does not admit. If you trust "
            "its source, declare them with torch.serialization.add_safe_globals, or load with "
            "weights_only=False, which can run any code that the file contains."
        )


def _is_dtype(name: str) -> bool:
    """True for an element type of this torch: one that is younger than headrace goes to torch's unpickler."""
    module, _, attribute = name.rpartition(".")
    return module == "torch" and isinstance(getattr(torch, attribute, None), torch.dtype)


def unpickle(
    file: CheckpointFile, storages: dict[str, Any], weights_only: bool, map_location: MapLocation
) -> Any:
    """The object by torch's own unpicklers over our storages, for what `replay` does not make."""

    def persistent_load(saved_id: Any) -> Any:
        if isinstance(saved_id, tuple) and len(saved_id) == 4 and _text(saved_id[0]) == "module":
            return saved_id[1]  # legacy: a class, and its source, which torch compares and only warns about
        if not isinstance(saved_id, tuple) or len(saved_id) < 3 or _text(saved_id[0]) != "storage":
            raise pickle.UnpicklingError(f"unknown persistent id {saved_id!r}")
        storage = storages[_text(saved_id[2])]
        untyped = storage._untyped_storage
        if untyped.nbytes() == 0 and saved_id[1] is not torch.UntypedStorage:
            return torch.storage.TypedStorage(wrap_storage=untyped, dtype=saved_id[1].dtype, _internal=True)
        return storage

    text = io.BytesIO(file.pickle)
    if weights_only:
        from torch._weights_only_unpickler import Unpickler as SafeUnpickler

        safe = SafeUnpickler(text, encoding="utf-8")
        safe.persistent_load = persistent_load
        unpickler: Any = safe
    else:
        unpickler = _Unpickler(text, encoding="utf-8")
        unpickler.persistent_load = persistent_load
    # Read by the functions that rebuild subclasses.
    local = getattr(torch.serialization, "_serialization_tls", None)
    if local is not None:
        local.map_location = map_location
    try:
        obj = unpickler.load()
    finally:
        if local is not None:
            local.map_location = None
    _validate_sparse()
    return obj


def _text(value: Any) -> Any:
    return value.decode("ascii") if isinstance(value, bytes) else value


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if "Storage" in name and name not in ("UntypedStorage", "TypedStorage"):
            kind = getattr(torch.serialization, "StorageType", None)
            if kind is not None:
                try:
                    return kind(name)
                except KeyError:
                    pass
        return super().find_class(_RENAMED.get(module, module), name)
