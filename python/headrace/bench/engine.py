# SPDX-License-Identifier: Apache-2.0
"""bench checkpoint engine: DeepSpeed's own save_checkpoint, with its checkpoint engines and, through
headrace.integrations.deepspeed, with ours. One rank, on the CPU or one GPU, ZeRO 0 to 3."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import headrace

from . import models, setting, writers
from .command import CommandError, DataError, first_line, printable
from .memory import prime
from .options import TAGS
from .report import DURABLE, NOT_SYNCED, NOTHING, STARS, SYNCED, UNITS, Report, guide_line
from .saves import timed, warm_up

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from .command import Progress
    from .options import Options


class Kind(NamedTuple):
    """``writer``: its type in the config; None: no writer, DeepSpeed's torch engine."""

    writer: str | None
    durability: str


ROWS = {
    "test_save": Kind(None, NOT_SYNCED),
    "test_ds_mock_save": Kind("mock", NOTHING),
    "test_ds_py_save": Kind("python", NOT_SYNCED),
    "test_ds_gds_fast_save": Kind("fast", SYNCED),
    "test_ds_aio_fast_save": Kind("fast", SYNCED),
    "headrace_save": Kind("fast", DURABLE),
}
OTHER_VALUES = "load_checkpoint gives other values"


def run(options: Options, progress: Progress) -> Report:
    from . import BenchError

    report = Report(options.benchmark, setting.facts(options), progress)
    reason = setting.why_no_deepspeed()
    if reason:
        raise BenchError(f"engine is DeepSpeed's own save_checkpoint, and {reason}")
    model = models.build(options, progress)
    report.facts["model"] = model.source
    report.facts["zero stage"] = options.zero_stage
    setting.be_the_only_rank(options)
    print(UNITS, flush=True)
    for number in range(options.rounds):
        for tag in TAGS["engine"]:
            if tag == "test_ds_gds_fast_save" and options.wants(tag) and number == 0:
                reason = writers.why_no_gds(options)
                if reason:
                    report.skip(tag, reason)
            if options.wants(tag) and not any(row.tag == tag and row.skipped for row in report.rows):
                progress.step(f"{tag}, {number + 1} of {options.rounds}")
                _measure(options, report, model, tag, last=number + 1 == options.rounds)
    return report


def _measure(options: Options, report: Report, model: models.Model, tag: str, *, last: bool) -> None:
    """One row once, in a folder of its own."""
    from . import BenchError

    top = options.folder / model.name
    folder = top / tag
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with _underneath(tag, options) as note:
            engine = _engine(options, model, tag)
            try:
                _save_and_load(engine, folder, options, report, tag)
            finally:
                engine.destroy()
            if note:
                report.row(tag, "").note(note)
    except CommandError:
        raise
    except Exception as error:
        if tag == "headrace_save":
            raise BenchError(f"{tag}: {first_line(error)}") from error
        report.skip(tag, f"it failed: {first_line(error)}")
    else:
        print(STARS, flush=True)
    finally:
        if not (options.keep and last):
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                top.rmdir()


def _save_and_load(engine: Any, folder: Path, options: Options, report: Report, tag: str) -> None:
    """save_checkpoint, timed, and what load_checkpoint makes of it."""
    from . import BenchError

    row = report.row(tag, ROWS[tag].durability)
    ours = row.tag == "headrace_save"
    if ours != type(engine.checkpoint_engine).__module__.startswith("headrace."):
        raise BenchError(f"{row.tag}: DeepSpeed made a {type(engine.checkpoint_engine).__name__}")
    if ours:
        about_bytes = models.bytes_of(engine.module)
        warm_up(headrace.save, options.folder / f"{row.tag}_warm_up.pt", options, about_bytes)
    os.sync()
    prime(6 * models.bytes_of(engine.module))  # with the optimizer: 3 times in memory, and in the file
    seconds, _ = timed(lambda: engine.save_checkpoint(save_dir=str(folder), tag=row.tag), options)
    report.progress.clear()
    print(f"checkpoint file = {printable(str(folder))}", flush=True)
    row.size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    row.seconds.append(seconds)
    print(f"{row.tag} -- {guide_line(row.size_bytes, row.size_bytes, seconds)}")
    print(f"    {row.durability}")
    if row.durability == NOTHING:
        return
    trouble = _read_back(engine, folder, row.tag)
    if trouble and ours:
        raise (DataError if trouble.startswith(OTHER_VALUES) else BenchError)(f"{row.tag}: {trouble}")
    row.note(trouble or "load_checkpoint gives the same values")
    print(f"    {printable(row.notes[-1])}")


@contextlib.contextmanager
def _underneath(tag: str, options: Options) -> Iterator[str]:
    """DeepSpeed as it is, or with headrace underneath. Gives a note for the row."""
    if tag == "headrace_save":
        from headrace.integrations import deepspeed as integration

        before = integration.enabled()
        integration.enable()
        try:
            yield ""
        finally:
            if not before:
                integration.disable()
    elif ROWS[tag].writer == "fast" and not options.gpu:
        name = "DS_PIN_MEMORY_BACKEND"  # without a GPU torch pins nothing, which fails this writer
        own = os.environ.get(name)
        os.environ[name] = own or "native"
        try:
            with contextlib.redirect_stdout(sys.stderr):  # it may be compiled here, with messages
                note = writers.use_an_utils_op()
            yield note
        finally:
            if own is None:
                del os.environ[name]
    else:
        yield ""


def _config(options: Options, tag: str) -> dict[str, Any]:
    """As the guide shows it."""
    kind = ROWS[tag].writer
    checkpoint: dict[str, Any] = {"checkpoint_serialization": options.zipfile}
    if kind is not None:
        checkpoint["writer"] = {
            "type": kind,
            "io_buffer_size": options.io_buffer_mb << 20,
            "io_buffer_double": not options.single_io_buffer,
            "show_statistics": not options.no_statistics,
            "data_parallel": "socket",
        }
    zero: dict[str, Any] = {"stage": options.zero_stage}
    if options.cpu_offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_batch_size": 1,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "fp16": {"enabled": options.half},
        "optimizer": {"type": "Adam", "params": {"torch_adam": not options.fused}},
        "checkpoint": checkpoint,
        "aio": {
            "block_size": writers.BLOCK_BYTES,
            "queue_depth": writers.QUEUE_DEPTH,
            "single_submit": False,
            "overlap_events": True,
            "intra_op_parallelism": 2,
            "use_gds": tag == "test_ds_gds_fast_save",
        },
    }


def _engine(options: Options, model: models.Model, tag: str) -> Any:
    """The engine, with an optimizer state that is there and is not zeros."""
    import copy

    import deepspeed
    import torch

    with contextlib.redirect_stdout(sys.stderr):
        module = copy.deepcopy(model.module)  # ZeRO 3 cuts the parameters up
        engine, *_ = deepspeed.initialize(
            model=module, model_parameters=module.parameters(), config=_config(options, tag)
        )
    if options.zero_stage == 0:
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        engine.optimizer.step()
        for parameter in module.parameters():
            parameter.grad = None
    for tensor in _values(engine):
        if tensor.is_floating_point() and tensor.numel() > 1 and not tensor.count_nonzero():
            tensor.uniform_()
    return engine


def _values(engine: Any) -> Iterator[torch.Tensor]:
    """The parameters, or under ZeRO 3 this rank's parts of them, and the state of the optimizer."""
    for parameter in engine.module.parameters():
        yield getattr(parameter, "ds_tensor", parameter.detach())
    optimizer = engine.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for _, value in sorted(optimizer.state.get(parameter, {}).items()):
                if hasattr(value, "detach"):
                    yield value.detach()


def _digests(engine: Any) -> list[str]:
    import torch

    return [
        hashlib.blake2b(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()
        for tensor in _values(engine)
    ]


def _read_back(engine: Any, folder: Path, tag: str) -> str:
    """Empty if load_checkpoint brings every value back after all were forgotten."""
    import torch

    expected = _digests(engine)
    with torch.no_grad():
        for tensor in _values(engine):
            tensor.zero_()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            loaded, _ = engine.load_checkpoint(str(folder), tag=tag)
    except Exception as error:
        return f"load_checkpoint cannot read it: {first_line(error)}{_odd_name(folder)}"
    if loaded is None:
        return f"load_checkpoint finds nothing{_odd_name(folder)}"
    found = _digests(engine)
    wrong = sum(one != other for one, other in zip(expected, found, strict=False))
    if len(expected) != len(found) or wrong:
        return f"{OTHER_VALUES} in {wrong} of {len(expected)} tensors"
    return ""


def _odd_name(folder: Path) -> str:
    """DeepSpeed's fast engine puts -RANK.WRITERS behind names, and looks for them without."""
    odd = sorted(file.name for file in folder.rglob("*.pt-*"))
    return f" (it was saved as {odd[0]})" if odd else ""
