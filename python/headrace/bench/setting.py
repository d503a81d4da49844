# SPDX-License-Identifier: Apache-2.0
"""What must be so before a benchmark runs, and the facts of the machine it runs on."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import platform
import random
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import headrace

from .._measure import file_system_of
from .command import first_line

if TYPE_CHECKING:
    from .options import Options

SEED = 42
PACKAGES = ("torch", "deepspeed", "transformers", "safetensors")


def check(options: Options) -> None:
    """Raises BenchError if torch, safetensors or the GPU asked for is missing or broken. Seeds the random
    numbers."""
    from . import BenchError

    if importlib.util.find_spec("torch") is None:
        raise BenchError("this needs torch: pip install torch")
    if options.safetensors and importlib.util.find_spec("safetensors") is None:
        raise BenchError("--safetensors needs the package: pip install safetensors")
    try:
        import torch
    except Exception as error:
        raise BenchError(f"torch cannot be imported: {first_line(error)}") from error

    if options.gpu and not torch.cuda.is_available():
        raise BenchError("--gpu: torch finds no GPU here; without --gpu the benchmark runs on the CPU")
    if options.gpu and options.local_rank >= torch.cuda.device_count():
        raise BenchError(f"--local_rank {options.local_rank}: there are {torch.cuda.device_count()} GPUs")
    if not options.gpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read by DeepSpeed when it is imported
    torch.manual_seed(SEED)
    random.seed(SEED)


def why_no_deepspeed() -> str:
    """Empty if DeepSpeed can be imported. Its messages go to stderr."""
    if importlib.util.find_spec("deepspeed") is None:
        return "deepspeed is not installed (pip install deepspeed==0.19.8)"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            import deepspeed  # noqa: F401
    except Exception as error:
        return f"deepspeed cannot be imported: {first_line(error)}"
    return ""


def be_the_only_rank(options: Options) -> None:
    """A process group of this process alone, until it ends, and what DeepSpeed reads of a launcher."""
    import deepspeed
    import torch.distributed as dist

    os.environ.update(RANK="0", LOCAL_RANK=str(options.local_rank), WORLD_SIZE="1", LOCAL_SIZE="1")
    os.environ.update(CROSS_RANK="0", CROSS_SIZE="1")
    if dist.is_initialized():
        return
    if not options.gpu:
        # Nobody to share memory with; the op would be compiled for a minute.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if options.gpu else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    atexit.register(dist.destroy_process_group)
    with contextlib.redirect_stdout(sys.stderr):
        deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False)


def facts(options: Options) -> dict[str, object]:
    found: dict[str, object] = {
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "file system": file_system_of(options.folder),
        "device": options.device,
        "headrace": headrace.__version__,
    }
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
