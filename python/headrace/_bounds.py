# SPDX-License-Identifier: Apache-2.0
"""Which memory the elements of tensors take: within their storage, and two of them the same."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


def extent_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of the first byte, and behind the last one; strides may leave out some between them."""
    begin = tensor.data_ptr()
    return begin, begin + _span(tensor)


def _span(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """True for a tensor of torch itself whose elements lie in its storage by their strides."""
    import torch

    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not (tensor.is_meta or tensor.is_nested or tensor.is_mkldnn)
    )


class Memory(NamedTuple):
    """Addresses of a tensor's first byte and behind its last one, valid while ``storage`` is kept: libraries
    put another storage into a tensor, and free the old one."""

    storage: torch.UntypedStorage
    begin: int
    end: int


def memory_of(name: str, tensor: torch.Tensor) -> Memory:
    """Of a tensor with plain memory. ValueError if elements lie outside the storage: libraries resize one to
    0 to free its memory."""
    storage = tensor.untyped_storage()
    first = tensor.storage_offset() * tensor.element_size()
    span = tensor.nbytes if tensor.is_contiguous() else _span(tensor)
    if span and first + span > storage.nbytes():
        raise ValueError(
            f"tensor {name!r} needs {first + span} bytes of its storage, which holds {storage.nbytes()}: "
            "the storage was resized or freed"
        )
    begin = storage.data_ptr() + first if span else 0
    return Memory(storage, begin, begin + span)


class Filled(NamedTuple):
    """A tensor that is to be filled, and with what; two that are filled with the same may share memory."""

    name: str
    target: torch.Tensor
    begin: int  # address of its first byte, and behind its last one
    end: int
    content: tuple[Any, ...]


def refuse_overlaps(filled: list[Filled]) -> None:
    """ValueError if some element's memory would be filled twice, with different contents."""
    for one in filled:
        if not one.target.is_contiguous():
            _refuse_own_overlap(one)
    extents = sorted(
        (str(one.target.device), one.begin, one.end, i) for i, one in enumerate(filled) if one.begin < one.end
    )
    cluster: list[Filled] = []
    device, behind = "", 0
    for where, begin, end, i in extents:
        if where != device or begin >= behind:
            _check_cluster(cluster)
            cluster, device, behind = [], where, end
        cluster.append(filled[i])
        behind = max(behind, end)
    _check_cluster(cluster)


def _refuse_own_overlap(one: Filled) -> None:
    target = one.target
    reach = 1  # elements from the first one to behind the last, by the strides so far
    for stride, size in sorted(zip(target.stride(), target.shape, strict=True)):
        if size > 1 and stride < reach:
            break
        reach += (size - 1) * stride
    else:
        return
    if not target.numel():
        return
    import torch

    seen = torch.zeros((one.end - one.begin) // target.element_size(), dtype=torch.bool, device="cpu")
    if 0 not in target.stride():
        seen.as_strided(target.shape, target.stride(), 0).fill_(True)
    if int(seen.count_nonzero()) != target.numel():
        raise ValueError(f"tensor {one.name!r} of into= has several elements at one place in memory")


def _check_cluster(cluster: list[Filled]) -> None:
    """Their extents overlap. With strides that need not mean that elements do."""
    numbers: dict[tuple[Any, ...], int] = {}
    for one in cluster:
        numbers.setdefault(one.content, len(numbers) + 1)
    if len(numbers) < 2:
        return
    import torch

    first = min(one.begin for one in cluster)
    behind = max(one.end for one in cluster)
    unit = math.gcd(*(one.target.element_size() for one in cluster), *(one.begin - first for one in cluster))
    # By unit of memory the number of the content that fills it.
    owners = torch.zeros((behind - first) // unit, dtype=torch.int32, device="cpu")
    for one in cluster:
        item = one.target.element_size() // unit
        own = owners.as_strided(
            [*one.target.shape, item],
            [*(stride * item for stride in one.target.stride()), 1],
            (one.begin - first) // unit,
        )
        number = numbers[one.content]
        others = own[(own != 0) & (own != number)]
        if others.numel():
            other = next(o for o in cluster if numbers[o.content] == int(others[0]))
            raise ValueError(
                f"{other.name!r} and {one.name!r} of into= share memory, and in the file they do not"
            )
        own.fill_(number)
