# SPDX-License-Identifier: Apache-2.0
"""The options of the benchmarks: those of DeepSpeed's FastPersist guide under their names, and ours."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

Benchmark = Literal["tensor", "model", "engine", "load"]

SUMMARIES = {
    "tensor": "save one tensor",
    "model": "save a model, and its optimizer",
    "engine": "DeepSpeed's save_checkpoint, with its checkpoint engine and with ours",
    "load": "save a model's state_dict, load it, compare the logits",
}
# The rows, in the guide's order; ours stand last.
_SAVES = (
    "test_save",
    "test_ds_mock_save",
    "test_ds_py_save",
    "test_ds_gds_fast_save",
    "test_ds_aio_fast_save",
    "headrace_mock_save",
    "headrace_py_save",
    "headrace_fast_save",
    "headrace_save",
)
TAGS = {
    "tensor": _SAVES,
    "model": _SAVES,
    "engine": (*_SAVES[:5], "headrace_save"),
    "load": ("test_save", "test_safetensors_save", "test_ds_aio_fast_save", *_SAVES[-2:]),
}
ROWS_HELP = "only these rows; default: all"
# The guide's scripts share one list of options; what a benchmark takes and does nothing with is said.
WITHOUT_EFFECT = {
    "tensor": (),
    "model": ("zero_stage", "cpu_offload", "safetensors", "regular_torch_save"),
    "engine": ("optimizer", "safetensors", "regular_torch_save"),
    "load": ("optimizer", "fused", "zero_stage", "cpu_offload"),
}


@dataclass(frozen=True)
class Options:
    """One command line. Sizes are in MiB, as the guide's."""

    benchmark: Benchmark
    folder: Path
    mb_size: int = 0
    model: str = ""
    local_rank: int = 0
    zipfile: bool = False
    optimizer: bool = False
    fused: bool = False
    gpu: bool = False
    half: bool = False
    io_buffer_mb: int = 64
    zero_stage: int = 0
    cpu_offload: bool = False
    no_statistics: bool = False
    single_io_buffer: bool = False
    safetensors: bool = False
    regular_torch_save: bool = False
    rounds: int = 1
    rows: tuple[str, ...] = ()
    keep: bool = False
    json: bool = False

    @property
    def device(self) -> str:
        return f"cuda:{self.local_rank}" if self.gpu else "cpu"

    def wants(self, tag: str) -> bool:
        """Whether the row is to be measured; test_ds_gds_fast_save is one for --gpu only."""
        if tag == "test_ds_gds_fast_save" and not self.gpu:
            return False
        return not self.rows or tag in self.rows


def _from(least: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return count


def _parser(benchmark: str, parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="where to write, on the device to be measured")
    if benchmark == "tensor":
        add("--mb_size", type=_from(1), required=True, metavar="MIB", help="of the tensor")
    else:
        add(
            "--model",
            required=True,
            metavar="TAG|FOLDER|MODULE:FUNCTION",
            help="tiny-t5, gpt2-large, phi3, phi3-v, llama3-1B; a folder with a transformers model; or a "
            "function of yours that returns a torch.nn.Module",
        )
        add("--local_rank", type=_from(0), default=0, help="the GPU, with --gpu; default: 0")
        add("--optimizer", action="store_true", help="with the state of its optimizer")
        add("--fused", action="store_true", help="the fused optimizer")
        add("--half", action="store_true", help="float16; with --optimizer it needs --gpu")
        add("--zero_stage", type=int, choices=range(4), default=0, help="of DeepSpeed's ZeRO; default: 0")
        add("--cpu_offload", action="store_true", help="the optimizer's state on the CPU")
        add("--safetensors", action="store_true", help="save and load by safetensors")
        add("--regular_torch_save", action="store_true", help="save by torch.save alone")
    add("--zipfile", action="store_true", help="torch's zip container; default: its legacy container")
    add("--gpu", action="store_true", help="tensors on the GPU")
    add("--io_buffer_mb", type=_from(1), default=64, metavar="MIB", help="the pinned buffer; default: 64")
    add("--no-statistics", action="store_true", help="leave out the writers' statistics")
    add("--single_io_buffer", action="store_true", help="one buffer instead of two halves")
    own = parser.add_argument_group("not in the guide")
    own.add_argument("--rounds", type=_from(1), default=1, help="each row so many times; default: 1")
    own.add_argument("--rows", nargs="+", choices=TAGS[benchmark], default=[], metavar="TAG", help=ROWS_HELP)
    own.add_argument("--keep", action="store_true", help="leave the files of the last round")
    own.add_argument("--json", action="store_true", help="print the result as JSON; the lines go to stderr")


def _rows_apart(argv: list[str]) -> list[str]:
    """Names of rows may be separated by commas, too, as those of ./dev bench are."""
    apart: list[str] = []
    of_rows = False
    for word in argv:
        if word.startswith("--"):
            of_rows = word == "--rows"
        apart.extend(filter(None, word.split(",")) if of_rows else [word])
    return apart


def parse(argv: list[str]) -> Options:
    """The options, checked against each other. What is wrong exits with 2."""
    top = argparse.ArgumentParser(prog="headrace bench")
    kinds = top.add_subparsers(required=True, metavar="checkpoint")
    checkpoint = kinds.add_parser(
        "checkpoint", help="the micro-benchmarks of DeepSpeed's FastPersist guide"
    ).add_subparsers(dest="benchmark", required=True)
    parsers = {name: checkpoint.add_parser(name, help=text) for name, text in SUMMARIES.items()}
    for name, parser in parsers.items():
        _parser(name, parser)
    values = vars(top.parse_args(_rows_apart(argv)))
    values["rows"] = tuple(values["rows"])
    options = Options(**values)
    parser = parsers[options.benchmark]
    if not options.folder.is_dir():
        parser.error(f"--folder {options.folder} is not there, or is no folder")
    if options.optimizer and options.half and not options.gpu:
        parser.error(
            "--optimizer with --half needs --gpu: the optimizer's state of half precision is a GPU's"
        )
    if options.benchmark == "engine" and options.half and not options.gpu:
        parser.error("engine --half needs --gpu: DeepSpeed has no fp16 on the CPU")
    if options.safetensors and options.regular_torch_save:
        parser.error("--safetensors and --regular_torch_save are two ways to save: choose one")
    defaults = {field.name: field.default for field in fields(Options)}
    for name in WITHOUT_EFFECT[options.benchmark]:
        if getattr(options, name) != defaults[name]:
            print(f"headrace bench: --{name} changes nothing in {options.benchmark}", file=sys.stderr)
    return options
