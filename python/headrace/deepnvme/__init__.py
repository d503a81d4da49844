# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's DeepNVMe by its own names, on headrace: what its builders for async_io and pin_memory load.

    from headrace import deepnvme
    handle = deepnvme.aio_handle(block_size=8 << 20, queue_depth=32, intra_op_parallelism=2)
    buffer = handle.new_cpu_locked_tensor(1 << 28, torch.empty(0, dtype=torch.bfloat16))
    handle.async_pread(buffer, "weights.bin")
    handle.wait()

Names, argument orders, keyword names and defaults are DeepSpeed's. What aborts, hangs, prints, returns -1 or
tells of success on short data there raises here; docs/deepnvme.md lists every difference. Importing this
package does not import torch. headrace.integrations.deepspeed puts it under an installed DeepSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace import File
from headrace._errors import make_exception

from . import _arguments
from ._handle import aio_handle
from ._locked import pin_handle

if TYPE_CHECKING:
    import torch

    from headrace._types import Path

__all__ = ["aio_handle", "pin_handle", "gds_handle", "aio_read", "aio_write", "deepspeed_memcpy"]


def aio_read(
    buffer: torch.Tensor,
    filename: Path,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
    /,
) -> int:
    """Reads a whole file into ``buffer`` and returns 0. ValueError, with both sizes, if they differ.

    ``block_size`` and ``queue_depth`` as in aio_handle, whose read() it does on one thread.
    """
    handle = aio_handle(block_size, queue_depth, single_submit, overlap_events)
    wanted = _arguments.nbytes(_arguments.tensor("buffer", buffer))
    with File(_arguments.path(filename)) as file:
        size = file.size
    if size != wanted:
        raise ValueError(
            f"the buffer has {wanted} bytes and the file {filename!r} has {size}: aio_read reads a whole file"
        )
    return handle.read(buffer, filename, validate)


def aio_write(
    buffer: torch.Tensor,
    filename: Path,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
    /,
) -> int:
    """Writes ``buffer`` to the start of the file and returns 0. A longer file keeps its length.

    ``block_size`` and ``queue_depth`` as in aio_handle, whose write() it does on one thread.
    """
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).write(
        buffer, filename, validate
    )


def deepspeed_memcpy(dest: torch.Tensor, src: torch.Tensor, /) -> int:
    """Copies all of ``src`` into ``dest`` and returns 0: as elements if dtype and shape agree, else as bytes.

    ValueError if their sizes in bytes differ, or if bytes would have to go from or into a tensor that is not
    contiguous.
    """
    target = _arguments.tensor("dest", dest).detach()
    source = _arguments.tensor("src", src).detach()
    if target.dtype == source.dtype and target.shape == source.shape:
        target.copy_(source)
        return 0
    sizes = _arguments.nbytes(target), _arguments.nbytes(source)
    if sizes[0] != sizes[1]:
        raise ValueError(f"dest has {sizes[0]} bytes and src has {sizes[1]}")
    if not target.is_contiguous() or not source.is_contiguous():
        raise ValueError(
            "tensors of different shape or dtype are copied as bytes, which need both to be contiguous"
        )
    if sizes[0] > 0:
        import torch

        target.reshape(-1).view(torch.uint8).copy_(source.reshape(-1).view(torch.uint8))
    return 0


class gds_handle:  # noqa: N801  DeepSpeed's name
    """GPUDirect Storage is not in this version: making one raises headrace.UnavailableError."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise make_exception(
            "unavailable",
            0,
            "gds_handle",
            None,
            0,
            0,
            0,
            "gds_handle needs GPUDirect Storage, which this version of headrace does not have; "
            "aio_handle takes GPU tensors and moves them through host memory",
        )
