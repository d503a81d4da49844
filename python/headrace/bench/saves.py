# SPDX-License-Identifier: Apache-2.0
"""bench checkpoint tensor and model: one object saved in every way."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import models, setting
from .command import first_line, printable
from .memory import prime
from .options import TAGS
from .report import STARS, UNITS, Report, guide_line
from .writers import Save, Way, ways

if TYPE_CHECKING:
    import torch

    from .command import Progress
    from .options import Options

Check = Callable[[Way, Path], None]


def run(options: Options, progress: Progress) -> Report:
    report = Report(options.benchmark, setting.facts(options), progress)
    if options.benchmark == "tensor":
        progress.step(f"making a tensor of {options.mb_size} MiB")
        obj: object = _tensor(options)
        size_bytes = options.mb_size << 20
        suffix = f"{options.mb_size}MB.pt"
        save_all(options, report, obj, size_bytes, suffix, tags=TAGS["tensor"], rated_bytes=size_bytes)
    else:
        model = models.build(options, progress)
        report.facts["model"] = model.source
        obj = _state(model.module, options)
        size_bytes = models.bytes_of(model.module)
        save_all(options, report, obj, size_bytes, f"{model.name}.pt", tags=TAGS["model"])
    return report


def save_all(
    options: Options,
    report: Report,
    obj: object,
    about_bytes: int,
    suffix: str,
    *,
    tags: tuple[str, ...],
    rated_bytes: int = 0,
    check: Check | None = None,
) -> None:
    """Every round saves ``obj`` in every way, each into a new file TAG_SUFFIX, which goes afterwards.

    ``rated_bytes``: what the guide's rate counts, where that is not the file. ``check`` looks at the file.
    """
    progress = report.progress
    progress.step("opening the writers")
    opened = [way for way in ways(options, tags) if not _skipped(way, report)]
    progress.clear()
    print(UNITS, flush=True)
    for i, way in enumerate(opened):
        progress.step(f"warming up {way.tag} ({i + 1} of {len(opened)})")
        warm_up(way.save, options.folder / f"{way.tag}_warm_up", options, about_bytes)
    for number in range(options.rounds):
        for way in list(opened):
            path = options.folder / f"{way.tag}_{suffix}"
            progress.step(f"{way.tag}, {number + 1} of {options.rounds}: touching memory that it may need")
            prepare(path, about_bytes)
            progress.step(f"{way.tag}, {number + 1} of {options.rounds}: saving")
            keep = False
            try:
                _save_once(way, obj, path, options, report, rated_bytes)
                if check is not None:
                    check(way, path)
                keep = options.keep and number + 1 == options.rounds
            except _PeerError as error:
                report.skip(way.tag, f"it failed: {error}")
                opened.remove(way)
                continue
            finally:
                if not keep:
                    path.unlink(missing_ok=True)
            print(STARS, flush=True)


class _PeerError(Exception):
    """Another library failed: the other rows go on."""


def _save_once(way: Way, obj: object, path: Path, options: Options, report: Report, rated_bytes: int) -> None:
    try:
        seconds, writer = timed(lambda: way.save(obj, path), options)
        report.progress.clear()
        print(f"checkpoint file = {printable(str(path))}", flush=True)
    except Exception as error:
        if way.tag.startswith("test_"):
            raise _PeerError(first_line(error)) from error
        raise
    if not options.no_statistics and hasattr(writer, "_dump_state"):
        writer._dump_state()
    size_bytes = path.stat().st_size
    row = report.row(way.tag, way.durability)
    row.size_bytes = size_bytes
    row.seconds.append(seconds)
    if way.note:
        row.note(way.note)
    line = guide_line(size_bytes, rated_bytes or size_bytes, seconds)
    if options.benchmark == "load":  # the guide's line has no name here
        print(f"{way.tag}, {way.durability}:\n{line}", flush=True)
    else:
        print(f"{way.tag} -- {line}\n    {way.durability}", flush=True)


def _skipped(way: Way, report: Report) -> bool:
    if way.skipped:
        report.skip(way.tag, way.skipped)
    return bool(way.skipped)


def warm_up(save: Save, path: Path, options: Options, about_bytes: int) -> None:
    """One save that is not timed, so that memory which is taken at first use is there, as the pinned buffers
    are: of the pinned buffer's size, and up to four times that where so much is to be saved."""
    import torch

    with contextlib.suppress(Exception):  # what does not work says so in its first round
        buffer_bytes = options.io_buffer_mb << 20
        size_bytes = min(max(about_bytes, buffer_bytes), 4 * buffer_bytes)
        save({"warm up": torch.zeros(size_bytes, dtype=torch.uint8)}, path)
    path.unlink(missing_ok=True)


def prepare(path: Path, about_bytes: int) -> None:
    """No file of that name, no other's dirty pages, memory that the host has given already: for the page
    cache and for a copy."""
    path.unlink(missing_ok=True)
    os.sync()
    prime(2 * about_bytes)


def timed(work: Callable[[], Any], options: Options) -> tuple[float, Any]:
    """Seconds, and what the work returned. What the GPU still does before counts to neither side."""
    if options.gpu:
        import torch

        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def _tensor(options: Options) -> torch.Tensor:
    import torch

    return torch.randint(high=128, size=(options.mb_size << 20,), dtype=torch.uint8, device=options.device)


def _state(module: torch.nn.Module, options: Options) -> dict[str, object]:
    """The module itself, as the guide pickles it, and with --optimizer its optimizer after a step."""
    state: dict[str, object] = {"model": module}
    if options.optimizer:
        state["optimizer"] = _stepped_optimizer(list(module.parameters()), options)
    return state


def _stepped_optimizer(parameters: Iterable[torch.nn.Parameter], options: Options) -> object:
    """Adam after one step with gradients of zero; of half precision DeepSpeed's wrapper, with its float32
    copy of the parameters."""
    import torch

    from . import BenchError

    parameters = list(parameters)
    adam: Any = torch.optim.Adam(parameters, fused=options.fused)
    if options.half:
        reason = setting.why_no_deepspeed()
        if reason:
            raise BenchError(f"--optimizer --half is DeepSpeed's FP16 optimizer, and {reason}")
        from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
        from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

        setting.be_the_only_rank(options)  # the unfused one asks for its rank
        adam = FP16_Optimizer(adam) if options.fused else FP16_UnfusedOptimizer(adam)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    adam.step()
    for parameter in parameters:
        parameter.grad = None
    return adam
