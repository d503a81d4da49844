# SPDX-License-Identifier: Apache-2.0
"""Generates tokens with DeepSpeed ZeRO-3 and the parameters on disk, on headrace or DeepSpeed's own I/O.

    python zero3_generate.py --under headrace
    python zero3_generate.py --under deepspeed      # compiles its async_io: needs a compiler, ninja, libaio

The model is a LLaMA of random weights, made on the first run: nothing is downloaded. Every token reads all
parameters from disk, since they are dropped from the page cache before it. Runs on the CPU and prints JSON.
Needs torch, deepspeed, transformers and accelerate.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import time
from pathlib import Path
from typing import Any


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--under", choices=["headrace", "deepspeed"], required=True)
    parser.add_argument("--folder", type=Path, default=Path("zero3"), help="for the model and the parameters")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=16000)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--block-size", type=int, default=8 << 20)
    parser.add_argument("--queue-depth", type=int, default=32)
    parser.add_argument("--intra-op-parallelism", type=int, default=2)
    return parser.parse_args()


def make_model(arguments: argparse.Namespace) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder: Path = arguments.folder / f"llama-{arguments.hidden}-{arguments.layers}-{arguments.vocabulary}"
    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=arguments.hidden,
            intermediate_size=4 * arguments.hidden,
            num_hidden_layers=arguments.layers,
            num_attention_heads=arguments.hidden // 64,
            num_key_value_heads=max(1, arguments.hidden // 256),
            vocab_size=arguments.vocabulary,
            tie_word_embeddings=False,
        )
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="1GB")
    return folder


def deepspeed_config(arguments: argparse.Namespace, parameters: Path) -> dict[str, Any]:
    square = arguments.hidden * arguments.hidden
    return {
        "train_batch_size": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "stage3_prefetch_bucket_size": 2 * square,
            "stage3_max_live_parameters": 2 * square,
            "stage3_param_persistence_threshold": arguments.hidden,
            "offload_param": {
                "device": "nvme",
                "nvme_path": str(parameters),
                "buffer_count": 5,
                "buffer_size": max(arguments.hidden * arguments.vocabulary, 4 * square) + 1024,
            },
        },
        "aio": {
            "block_size": arguments.block_size,
            "queue_depth": arguments.queue_depth,
            "intra_op_parallelism": arguments.intra_op_parallelism,
            "overlap_events": True,
            "single_submit": False,
        },
    }


def evict(file: Path) -> None:
    """Drops a file from the page cache."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    arguments = parse_arguments()
    os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29557")
    if arguments.under == "headrace":
        import headrace.integrations.deepspeed

        headrace.integrations.deepspeed.enable()  # the only line that DeepSpeed's users add
    import deepspeed
    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder
    from transformers import AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    folder = make_model(arguments)
    parameters = arguments.folder / "parameters"
    shutil.rmtree(parameters, ignore_errors=True)
    parameters.mkdir(parents=True)
    deepspeed.init_distributed("gloo")
    config = deepspeed_config(arguments, parameters)
    keep_alive = HfDeepSpeedConfig(config)
    started = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    model = deepspeed.initialize(model=model, config=config)[0].module
    load_s = time.perf_counter() - started
    files = [file for file in parameters.rglob("*") if file.is_file()]

    tokens, wall, cpu = [], [], []
    given, past = torch.arange(1, 17).repeat(1, 1), None
    with torch.no_grad():
        for _ in range(arguments.tokens):
            for file in files:
                evict(file)
            used, started = cpu_seconds(), time.perf_counter()
            output = model(input_ids=given, past_key_values=past, use_cache=True)
            past, given = output.past_key_values, output.logits[:, -1].argmax(-1, keepdim=True)
            wall.append(time.perf_counter() - started)
            cpu.append(cpu_seconds() - used)
            tokens.append(given.item())
    del keep_alive
    result = {
        "module": AsyncIOBuilder().load().__name__,
        "bytes_on_disk": sum(file.stat().st_size for file in files),
        "files": len(files),
        "load_s": round(load_s, 2),
        "prefill_s": round(wall[0], 3),
        "token_s": round(statistics.median(wall[1:]), 4),
        "token_cpu_s": round(statistics.median(cpu[1:]), 4),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "tokens": tokens,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
