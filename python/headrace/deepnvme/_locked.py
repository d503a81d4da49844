# SPDX-License-Identifier: Apache-2.0
"""Tensors over headrace.Buffer by DeepSpeed's names:

made, given back and recognised by every handle of the process.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

from headrace import Buffer

from . import _arguments

if TYPE_CHECKING:
    import torch

# Start address -> (end address, storage), while the memory is alive and not given back. Changed by one dict
# operation at a time, which the interpreter makes atomic: a weak reference's callback may run anywhere.
_regions: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
_told_of_the_limit = False


def new_tensor(num_elem: object, example: object, example_name: str) -> torch.Tensor:
    """A 1-D CPU tensor of that many elements of ``example``'s dtype, on huge pages, locked if allowed."""
    number = _arguments.count("num_elem", num_elem, 0)
    kind = _arguments.tensor(example_name, example).dtype
    import torch

    if number == 0:
        return torch.from_dlpack(Buffer(0)).view(kind).data
    if number > _arguments.INT64_MAX // kind.itemsize:
        raise MemoryError(f"{number} elements of {kind} are more than any address space holds")
    buffer = Buffer(number * kind.itemsize)
    if not buffer.locked:
        _tell_of_the_limit()
    # `data` is no view of another tensor: callers can watch the tensor itself to learn when its memory goes.
    # No constructor such as torch.empty is used: DeepSpeed's zero.Init makes those give another dtype.
    locked = torch.from_dlpack(buffer).view(kind).data
    start = buffer.address

    def forget(gone: weakref.ref[torch.UntypedStorage]) -> None:
        region = _regions.get(start)
        if region is not None and region[1] is gone:
            _regions.pop(start, None)

    # torch keeps the storage's Python object as long as the storage: its death is that of the last view.
    _regions[start] = (start + buffer.nbytes, weakref.ref(locked.untyped_storage(), forget))
    return locked


def free_address(address: int) -> bool:
    """True if a living tensor of new_tensor() starts there: it is no longer pinned."""
    region = _regions.pop(address, None)
    return region is not None and region[1]() is not None


def free_tensor(name: str, value: object) -> bool:
    """free_address() of the tensor's first byte; False for memory that is not ours."""
    address = _address(_arguments.tensor(name, value))
    return address is not None and free_address(address)


def is_pinned(value: object) -> bool:
    """True if all of the tensor's bytes lie in one tensor of new_tensor(), or torch pinned them."""
    tensor = _arguments.tensor("buffer", value)
    start = _address(tensor)
    if start is None:
        return False
    end = start + _arguments.nbytes(tensor)
    own = _regions.get(tensor.untyped_storage().data_ptr())
    if own is not None and end <= own[0]:
        return True
    # An alias made outside torch has a storage of its own.
    if any(first <= start and end <= last for first, (last, _) in _regions.copy().items()):
        return True
    return bool(tensor.is_pinned())


def _address(tensor: torch.Tensor) -> int | None:
    """Where a tensor in host memory starts; None for one that has no bytes there."""
    if not tensor.is_cpu or tensor.is_sparse or tensor.numel() == 0:
        return None
    try:
        return tensor.data_ptr() or None
    except RuntimeError:  # sparse in other layouts, fake, functional
        return None


def _tell_of_the_limit() -> None:
    global _told_of_the_limit
    if _told_of_the_limit:
        return
    _told_of_the_limit = True
    import resource

    from headrace._log import logger

    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    limit = "unlimited" if soft in (resource.RLIM_INFINITY, math.inf) else f"{soft} bytes"
    logger.warning(
        "headrace.deepnvme: the memory of new_cpu_locked_tensor could not be locked (RLIMIT_MEMLOCK is %s). "
        "It is used as it is, without copies, but may be swapped out; `ulimit -l` raises the limit.",
        limit,
    )


class pin_handle:  # noqa: N801  DeepSpeed's name
    """Locked CPU tensors, by the names of DeepSpeed's ``pin_memory`` op.

    All handles of a process know the tensors of all others. Any thread may use it.
    """

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: torch.Tensor) -> torch.Tensor:
        """A 1-D CPU tensor of the example's dtype; see aio_handle.new_cpu_locked_tensor."""
        return new_tensor(num_elem, example_tensor, "example_tensor")

    def free_cpu_locked_tensor(self, locked_tensor: torch.Tensor) -> bool:
        """Gives it back; True if it was one of ours. See aio_handle.free_cpu_locked_tensor."""
        return free_tensor("locked_tensor", locked_tensor)

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        """The same, for the address of its first byte."""
        return free_address(_arguments.count("address", address, 0))

    def is_pinned(self, buffer: torch.Tensor) -> bool:
        """True if all of ``buffer`` lies in one locked tensor, or torch pinned it;

        see aio_handle.is_pinned.
        """
        return is_pinned(buffer)
