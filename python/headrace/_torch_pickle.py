# SPDX-License-Identifier: Apache-2.0
"""Pickling as torch.save does it: storages leave the pickle by persistent ids, and nothing is copied.

Importing this imports torch. Source of the ids: torch/serialization.py of torch 2.6 to 2.13, ``_save``.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.serialization import location_tag, normalize_storage_type

from ._device import DeviceMemory


class Storages:
    """The storages of one pickle, in the order of their keys "0", "1" and so on."""

    def __init__(self) -> None:
        self._keys: dict[int, str] = {}
        self._dtypes: dict[int, torch.dtype] = {}
        self.list: list[torch.UntypedStorage] = []
        self._bytes: list[int] = []
        self._host: list[torch.UntypedStorage] = []  # the storages on the host, or copies of them

    def persistent_id(self, obj: Any) -> tuple[object, ...] | None:
        """The id of a storage; None for everything else, which is pickled."""
        if isinstance(obj, torch.storage.TypedStorage):
            storage = obj._untyped_storage
            dtype = obj.dtype
            kind = getattr(torch, obj._pickle_storage_type())
            count = obj._size()
        elif isinstance(obj, torch.UntypedStorage):
            storage = obj
            dtype = torch.uint8
            kind = normalize_storage_type(type(obj))
            count = storage.nbytes()
        else:
            return None
        # A loader makes one typed storage of it, so two dtypes cannot be told apart.
        allocated = storage.device.type != "meta" and storage.data_ptr() != 0
        if allocated and self._dtypes.setdefault(storage.data_ptr(), dtype) != dtype:
            raise RuntimeError(
                "Cannot save multiple tensors or storages that view the same data as different types"
            )
        key = self._keys.get(storage._cdata)
        if key is None:
            key = self._keys[storage._cdata] = str(len(self.list))
            self.list.append(storage)
            # A storage may end within an element, and torch cannot read such a record.
            self._bytes.append(count * torch._utils._element_size(dtype))
        return ("storage", kind, key, location_tag(storage), count)

    def memory(self, device: DeviceMemory) -> list[tuple[int, int]]:
        """Addresses and lengths of the storages' bytes, which live as long as this object and ``device``."""
        found = []
        for storage, nbytes in zip(self.list, self._bytes, strict=True):
            address = device.place(storage, 0, nbytes)
            if address is None:
                host = (storage if storage.nbytes() == nbytes else storage[:nbytes]).cpu()
                self._host.append(host)
                address = host.data_ptr()
            found.append((address, nbytes))
        return found


class LegacyStorages(Storages):
    """The same for the legacy container: its ids have one more part, and classes of modules are ids too."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []
        self.element_bytes: list[int] = []
        self._modules: set[type] = set()

    def persistent_id(self, obj: Any) -> tuple[object, ...] | None:
        """As torch.save: ("module", class, file, source) once for a class; storages with None for a view."""
        if isinstance(obj, type) and issubclass(obj, torch.nn.Module):
            if obj in self._modules:
                return None
            self._modules.add(obj)
            return ("module", obj, *_source_of(obj))
        if isinstance(obj, torch.UntypedStorage):
            raise ValueError(
                "torch does not read element types that are younger than its legacy container (float8, "
                "uint16 to uint64, complex32 and the like) from it: save with format='torch'"
            )
        known = len(self.list)
        found = super().persistent_id(obj)
        if found is None:
            return None
        if len(self.list) > known:
            self.keys.append(str(found[2]))
            self.element_bytes.append(torch._utils._element_size(obj.dtype))
        return (*found, None)


def _source_of(kind: type) -> tuple[str | None, str | None]:
    import inspect

    try:
        return inspect.getsourcefile(kind), inspect.getsource(kind)
    except (OSError, TypeError):
        return None, None


def dumps(obj: object, storages: Storages) -> bytes:
    """The pickle of ``obj``, protocol 2, without its storages."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return storages.persistent_id(obj)

    text = io.BytesIO()
    Pickler(text, protocol=2).dump(obj)
    return text.getvalue()
