# SPDX-License-Identifier: Apache-2.0
"""The rows: torch.save alone, torch.save through DeepSpeed's writers and through ours, and headrace.save.

A way is opened once: handles, pinned buffers and compiled ops are ready before anything is timed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .command import LINE_MAX, first_line
from .report import DURABLE, NOT_SYNCED, NOTHING, SYNCED
from .setting import why_no_deepspeed

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from .._types import CheckpointFormat
    from .options import Options

# As the guide's scripts have them.
BLOCK_BYTES = 8 << 20
QUEUE_DEPTH = 8
PARALLELISM = 1

Save = Callable[[object, "Path"], Any]


@dataclass
class Way:
    """One row. ``save`` is what is timed, close() included; it may return a writer with statistics."""

    tag: str
    durability: str
    save: Save = field(default=lambda *_: None)
    skipped: str = ""
    note: str = ""


def ways(options: Options, tags: tuple[str, ...]) -> Iterator[Way]:
    """Those of the tags that are wanted, in that order, opened or with the reason why they cannot be."""
    for tag in tags:
        if options.wants(tag):
            opener, durability = _OPENERS[tag]
            way = Way(tag, durability)
            try:
                opener(way, options)
            except Exception as error:  # whatever another library does wrong, the other rows go on
                if not tag.startswith("test_ds"):
                    raise
                way.skipped = first_line(error)
            yield way


# ---- torch.save and headrace.save ----


def _open_torch(way: Way, options: Options) -> None:
    import torch

    def save(obj: object, path: Path) -> None:
        torch.save(obj, path, _use_new_zipfile_serialization=options.zipfile)

    way.save = save


def _open_ours(way: Way, options: Options) -> None:
    import headrace

    kind: CheckpointFormat = "torch" if options.zipfile else "torch-legacy"
    if options.safetensors and options.benchmark == "load":
        kind = "safetensors"
    way.save = lambda obj, path: headrace.save(obj, path, format=kind)


def _open_safetensors(way: Way, _: Options) -> None:
    from safetensors.torch import save_file

    way.save = save_file


# ---- torch.save through a writer ----


def _save_through(open_writer: Callable[[str], Any], options: Options) -> Save:
    import torch

    def save(obj: object, path: Path) -> Any:
        writer = open_writer(str(path))
        torch.save(obj, writer, _use_new_zipfile_serialization=options.zipfile)
        writer.close()
        return writer

    return save


def _fast(writers: ModuleType, handle: Any, buffer: Any, options: Options) -> Callable[[str], Any]:
    config = writers.FastFileWriterConfig(
        dnvme_handle=handle,
        pinned_tensor=buffer,
        double_buffer=not options.single_io_buffer,
        num_parallel_writers=1,
        writer_rank=0,
    )
    return lambda path: writers.FastFileWriter(file_path=path, config=config)


def _pinned(handle: Any, options: Options) -> Any:
    import torch

    return handle.new_cpu_locked_tensor(options.io_buffer_mb << 20, torch.empty(0, dtype=torch.uint8))


def _open_deepspeed(kind: str) -> Callable[[Way, Options], None]:
    def opener(way: Way, options: Options) -> None:
        way.skipped = why_no_deepspeed()
        if way.skipped:
            return
        with contextlib.redirect_stdout(sys.stderr):  # its ops may be compiled here, with messages
            import deepspeed.io as writers

            if kind in ("mock", "py"):
                one = writers.MockFileWriter if kind == "mock" else writers.PyFileWriter
                way.save = _save_through(lambda path: one(file_path=path), options)
                return
            way.note = use_an_utils_op()
            if kind == "gds":
                import torch

                way.skipped = why_no_gds(options)
                if way.skipped:
                    return
                from deepspeed.ops.op_builder import GDSBuilder

                handle = GDSBuilder().load().gds_handle(BLOCK_BYTES, QUEUE_DEPTH, False, False, PARALLELISM)
                buffer = torch.zeros(options.io_buffer_mb << 20, dtype=torch.uint8, device=options.device)
                handle.pin_device_tensor(buffer)
            else:
                from deepspeed.ops.op_builder import AsyncIOBuilder

                handle = (
                    AsyncIOBuilder().load().aio_handle(BLOCK_BYTES, QUEUE_DEPTH, False, False, PARALLELISM)
                )
                buffer = _pinned(handle, options)
        way.save = _save_through(_fast(writers, handle, buffer, options), options)

    return opener


_GDS_PROBE = """
import sys
import torch
from deepspeed.ops.op_builder import GDSBuilder
handle = GDSBuilder().load().gds_handle(1 << 20, 1, False, False, 1)
block = torch.zeros(1 << 20, dtype=torch.uint8, device=sys.argv[2])
handle.pin_device_tensor(block)
handle.sync_pwrite(block, sys.argv[1], 0)
"""
_GDS_PROBE_S = 300  # the op may have to be compiled


def why_no_gds(options: Options) -> str:
    """Empty if DeepSpeed writes through GPUDirect Storage here. It is tried in another process: where it
    cannot, it ends the one it is in."""
    path = options.folder / f"headrace-gds-probe-{os.getpid()}"
    command = [sys.executable, "-c", _GDS_PROBE, str(path), options.device]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_GDS_PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"DeepSpeed's gds_handle did not write within {_GDS_PROBE_S} s"
    finally:
        path.unlink(missing_ok=True)
    if ran.returncode == 0:
        return ""
    said = [line for line in (ran.stderr + ran.stdout).splitlines() if line.strip()]
    reason = next((line for line in reversed(said) if "error" in line.lower()), "it said nothing")
    return f"DeepSpeed's gds_handle cannot write to {options.folder}: {reason.strip()[:LINE_MAX]}"


def use_an_utils_op() -> str:
    """DeepSpeed's FastFileWriter calls its op utils, which its CPU accelerator does not have, although the
    same source serves every other one. There that other builder is put in its place; returns a note."""
    import deepspeed.io.fast_file_writer as module

    try:
        module.UtilsBuilder().load()
    except ValueError:
        from deepspeed.ops.op_builder.utils import UtilsBuilder

        UtilsBuilder().load()
        module.UtilsBuilder = UtilsBuilder
    from deepspeed.ops.op_builder.utils import UtilsBuilder as General

    if module.UtilsBuilder is General and "cpu" in _accelerator():
        return "DeepSpeed has no op utils for the CPU: its general one was built and used"
    return ""


def _accelerator() -> str:
    from deepspeed.accelerator import get_accelerator

    return str(get_accelerator().device_name())


def _open_headrace(kind: str) -> Callable[[Way, Options], None]:
    def opener(way: Way, options: Options) -> None:
        from headrace import deepnvme, fastpersist

        if kind in ("mock", "py"):
            one = fastpersist.MockFileWriter if kind == "mock" else fastpersist.PyFileWriter
            way.save = _save_through(lambda path: one(file_path=path), options)
            return
        handle = deepnvme.aio_handle(BLOCK_BYTES, QUEUE_DEPTH, False, False, PARALLELISM)
        way.save = _save_through(_fast(fastpersist, handle, _pinned(handle, options), options), options)

    return opener


_OPENERS: dict[str, tuple[Callable[[Way, Options], None], str]] = {
    "test_save": (_open_torch, NOT_SYNCED),
    "test_safetensors_save": (_open_safetensors, NOT_SYNCED),
    "test_ds_mock_save": (_open_deepspeed("mock"), NOTHING),
    "test_ds_py_save": (_open_deepspeed("py"), NOT_SYNCED),
    "test_ds_aio_fast_save": (_open_deepspeed("aio"), SYNCED),
    "test_ds_gds_fast_save": (_open_deepspeed("gds"), SYNCED),
    "headrace_mock_save": (_open_headrace("mock"), NOTHING),
    "headrace_py_save": (_open_headrace("py"), NOT_SYNCED),
    "headrace_fast_save": (_open_headrace("fast"), DURABLE),
    "headrace_save": (_open_ours, DURABLE),
}
