# SPDX-License-Identifier: Apache-2.0
"""What stands between tensor and disk where the tensor cannot be used itself; the comparison for validate.

CPU tensors need nothing of this: headrace stages what it must in bounded memory. Tensors of other devices,
and targets with gaps, go through a copy of their own size.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from headrace._errors import make_exception

from . import _arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from headrace import Handle
    from headrace._types import Path

_COMPARED_AT_ONCE = 16 << 20


def _has_gaps(tensor: torch.Tensor) -> bool:
    """True for strides that leave elements apart but share none; headrace refuses what overlaps, by name."""
    if tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return False
    return all(stride != 0 or size < 2 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _is_strided(tensor: torch.Tensor) -> bool:
    import torch

    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested


def _host_copy(tensor: torch.Tensor) -> torch.Tensor:
    import headrace.torch

    return headrace.torch.empty(tensor.shape, dtype=tensor.dtype, lock=False)


def read_target(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Where to read to, and what copies it into ``tensor`` afterwards if that is another place."""
    if (tensor.is_cpu and tensor.is_contiguous()) or not _is_strided(tensor):
        return tensor, None
    if tensor.is_cpu and not _has_gaps(tensor):
        return tensor, None
    staged = _host_copy(tensor)

    def copy_back() -> None:
        tensor.detach().copy_(staged)

    return staged, copy_back


def write_source(tensor: torch.Tensor) -> torch.Tensor:
    """What to write: ``tensor``, or its values on the host."""
    if tensor.is_cpu or not _is_strided(tensor):
        return tensor
    return _host_copy(tensor).copy_(tensor.detach())


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last address that the tensor may use.

    Empty for one without memory; the request refuses it.
    """
    try:
        if tensor.is_contiguous():
            start = tensor.data_ptr()
            return start, start + _arguments.nbytes(tensor)
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    except (RuntimeError, NotImplementedError):
        return 0, 0


class Comparison:
    """Reads a range again and compares it with the tensor that was moved."""

    def __init__(self, handle: Handle, tensor: torch.Tensor, path: Path | int, offset: int) -> None:
        self._handle = handle
        self._tensor = tensor
        self._path = path
        self._offset = offset

    def __call__(self) -> None:
        """Raises TransferError (EIO) at the first byte that differs."""
        import torch

        expected = (
            self._tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        )
        total = expected.numel()
        found = torch.empty(min(total, _COMPARED_AT_ONCE), dtype=torch.uint8, device="cpu")
        for done in range(0, total, _COMPARED_AT_ONCE):
            piece = expected[done : done + _COMPARED_AT_ONCE]
            part = found[: piece.numel()]
            self._handle.read(self._path, part, offset=self._offset + done).result()
            if torch.equal(part, piece):
                continue
            place = done + int((part != piece).nonzero()[0])
            raise make_exception(
                "io",
                errno.EIO,
                "validate",
                self._path,
                self._offset,
                total,
                place,
                f"validate of {self._path!r}: the byte at {self._offset + place} is not the buffer's",
            )


def after(*steps: Callable[[], None] | None) -> Callable[[], None] | None:
    """Those of the steps that are there, as one."""
    there = [step for step in steps if step is not None]
    if len(there) < 2:
        return there[0] if there else None

    def all_steps() -> None:
        for step in there:
            step()

    return all_steps
