# SPDX-License-Identifier: Apache-2.0
"""Tensors on devices, saved without a copy of them all on the host. Importing this imports torch."""

from __future__ import annotations

import bisect
import contextlib
from typing import TYPE_CHECKING

import torch

from ._core import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._types import DeviceCopy

# No address of a process lies there: python/src/device_copy.h.
_FIRST_ADDRESS = 1 << 63
# What is smaller is copied to the host before: each piece costs a call, and the device's answer.
_FROM_BYTES = 1 << 20
_STAGING_BYTES = 64 << 20
_HUGE_PAGE_BYTES = 2 << 20


class DeviceMemory:
    """Gives addresses to bytes on devices, and brings them to the host while a file is written."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._flat: list[torch.Tensor] = []
        self._end = _FIRST_ADDRESS

    def place(self, storage: torch.UntypedStorage, begin: int, nbytes: int) -> int | None:
        """An address for bytes of a storage, which is kept; None for those better copied to the host now."""
        if not _on_device(storage) or nbytes < _FROM_BYTES or storage.data_ptr() == 0:
            return None
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        self._flat.append(whole[begin : begin + nbytes])
        self._begins.append(self._end)
        self._end += nbytes
        return self._begins[-1]

    @contextlib.contextmanager
    def ready(self) -> Iterator[DeviceCopy | None]:
        """What _core.save_* take as ``device_copy``; None where nothing was placed."""
        if not self._flat:
            yield None
            return
        placed = self._end - _FIRST_ADDRESS
        buffer = Buffer(min(_STAGING_BYTES, -(-placed // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES), lock=False)
        staging = torch.from_dlpack(buffer)

        def copy(address: int, nbytes: int, at: int) -> None:
            index = bisect.bisect_right(self._begins, address) - 1
            begin = address - self._begins[index]
            staging[at : at + nbytes].copy_(self._flat[index][begin : begin + nbytes])

        with _pinned(staging) if any(flat.is_cuda for flat in self._flat) else contextlib.nullcontext():
            yield staging.data_ptr(), staging.nbytes, copy


def _on_device(storage: torch.UntypedStorage) -> bool:
    return bool(storage.device.type != "cpu")


@contextlib.contextmanager
def _pinned(memory: torch.Tensor) -> Iterator[None]:
    """Known to CUDA, which then copies several times faster; where it refuses, copies are only slower."""
    runtime = torch.cuda.cudart()
    registered = int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) == 0
    try:
        yield
    finally:
        if registered:
            runtime.cudaHostUnregister(memory.data_ptr())
