# SPDX-License-Identifier: Apache-2.0
"""The options of the benchmarks: those of DeepSpeed's FastPersist guide under their names, and ours."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

from .command import Parser, usage_error

Benchmark = Literal["tensor", "model", "engine", "load"]

OPERATION = "bench checkpoint"
COMMAND = f"headrace {OPERATION}"
SUMMARIES = {
    "tensor": "Save one tensor in several ways",
    "model": "Save a model, and its optimizer, in several ways",
    "engine": "Run DeepSpeed's save_checkpoint with its checkpoint engine and with ours",
    "load": "Save a model's state_dict, load it, and compare the logits",
}
ABOUT = """\
A benchmark of DeepSpeed's FastPersist guide, with its options and lines. It needs torch. All files lie in a \
new folder headrace-bench-..., which is removed at the end; no other file is touched. In the table GB are \
10^9 bytes."""
ABOUT_ALL = """\
Compare ways to save and load checkpoints; needs torch.
The micro-benchmarks of DeepSpeed's FastPersist guide, with their options and lines. All files lie in a new \
folder headrace-bench-... inside of FOLDER, which is removed at the end; no other file is touched."""
KINDS = "Benchmarks:\n" + "\n".join(f"  {name:8}{text}." for name, text in SUMMARIES.items())
OVERVIEW = """\
headrace bench checkpoint BENCHMARK --help tells the options of one.

Examples:
  headrace bench checkpoint tensor /data
  headrace bench checkpoint load /data --model gpt2-large --safetensors

Exit status: 0 done, 1 failed, 2 the command line makes no sense, 3 other values came back than were saved."""
EXAMPLES = {
    "tensor": """\
Examples:
  headrace bench checkpoint tensor /data
  headrace bench checkpoint tensor /data --mb-size 2048 --rounds 3 --rows test_save headrace_save
  headrace bench checkpoint tensor --folder /data --mb_size 2048""",
    "model": """\
Examples:
  headrace bench checkpoint model /data --model phi3 --optimizer
  headrace bench checkpoint model /data --model mine:make_model --json""",
    "engine": """\
Examples:
  headrace bench checkpoint engine /data --model gpt2-large --zero-stage 3""",
    "load": """\
Examples:
  headrace bench checkpoint load /data --model llama3-1B --safetensors
  headrace bench checkpoint load /data --model mine:make_model --regular-torch-save""",
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


def _add(parser: argparse.ArgumentParser | argparse._ArgumentGroup, name: str, **how: Any) -> None:
    """With dashes, as the program's options are, and with underscores, as the guide's."""
    long = name.removeprefix("--")
    other = f"--{long.replace('-', '_')}"
    parser.add_argument(*dict.fromkeys((name, other)), dest=long.replace("-", "_"), **how)


def _parser(benchmark: str) -> Parser:
    parser = Parser(
        prog=f"{COMMAND} {benchmark}",
        description=f"{SUMMARIES[benchmark]}.\n{ABOUT}",
        epilog=EXAMPLES[benchmark],
        add_help=False,
        allow_abbrev=False,
    )
    add = partial(_add, parser)
    parser.add_argument(
        "place", type=Path, nargs="?", metavar="FOLDER", help="a folder on the disk to measure"
    )
    add("--folder", type=Path, metavar="FOLDER", help="The same as FOLDER.")
    if benchmark == "tensor":
        add("--mb-size", type=_from(1), default=1024, metavar="MIB", help="Size of the tensor in MiB.")
    else:
        add(
            "--model",
            metavar="TAG|FOLDER|MODULE:FUNCTION",
            help="tiny-t5, gpt2-large, phi3, phi3-v, llama3-1B; a folder with a transformers model; or a "
            "function of yours that returns a torch.nn.Module. It must be given.",
        )
        add("--local-rank", type=_from(0), default=0, metavar="N", help="The GPU, with --gpu.")
        add("--optimizer", action="store_true", help="With the state of its optimizer.")
        add("--fused", action="store_true", help="The fused optimizer.")
        add("--half", action="store_true", help="float16; with --optimizer it needs --gpu.")
        add("--zero-stage", type=int, choices=range(4), default=0, help="The stage of DeepSpeed's ZeRO.")
        add("--cpu-offload", action="store_true", help="The optimizer's state on the CPU.")
        add("--safetensors", action="store_true", help="Save and load by safetensors.")
        add("--regular-torch-save", action="store_true", help="Save by torch.save alone.")
    add("--zipfile", action="store_true", help="torch's zip container instead of its legacy one.")
    add("--gpu", action="store_true", help="Tensors on the GPU.")
    add("--io-buffer-mb", type=_from(1), default=64, metavar="MIB", help="Size of the pinned buffer in MiB.")
    add("--no-statistics", action="store_true", help="Leave out the writers' statistics.")
    add("--single-io-buffer", action="store_true", help="One buffer instead of two halves.")
    own = partial(_add, parser.add_argument_group("Not in the guide"))
    own("--rounds", type=_from(1), default=1, metavar="N", help="Measure each row so many times.")
    own(
        "--rows",
        action="extend",
        nargs="+",
        choices=TAGS[benchmark],
        default=[],
        metavar="TAG",
        help=f"Only these rows of {', '.join(TAGS[benchmark])}.",
    )
    own(
        "--keep",
        action="store_true",
        help="Leave the files of the last round, in the folder that is named then.",
    )
    own(
        "--json",
        action="store_true",
        help="Print the result as one JSON object, whose schema is documented and versioned, instead of "
        "text; the lines go to standard error.",
    )
    parser.add_argument("-h", "--help", action="help", help="Print this help and exit.")
    return parser


def _rows_apart(argv: list[str]) -> list[str]:
    """Names of rows may be separated by commas, too, as those of ./dev bench are."""
    apart: list[str] = []
    of_rows = False
    for word in argv:
        if word.startswith("--"):
            of_rows = word == "--rows"
        if word.startswith("--rows="):  # a FOLDER may follow
            names = word.removeprefix("--rows=").split(",")
            apart.extend([f"--rows={name}" for name in names if name] or [word])
        else:
            apart.extend(filter(None, word.split(",")) if of_rows else [word])
    return apart


def _benchmark(words: list[str]) -> str:
    """The first word, which has to be a benchmark's name."""
    name = words[0] if words else ""
    if name not in SUMMARIES:
        if set(words) & {"-h", "--help"}:
            overview = Parser(description=ABOUT_ALL, epilog=f"{KINDS}\n\n{OVERVIEW}", add_help=False)
            overview.usage_line = f"{COMMAND} BENCHMARK [OPTION]... [FOLDER]"
            print(overview.format_help(), end="")
            sys.exit(0)
        _refuse_name(name)
    return name


def _refuse_name(word: str) -> NoReturn:
    *first, last = SUMMARIES
    names = f"{', '.join(first)} and {last}"
    if not word or word.startswith("-"):
        usage_error(f"{COMMAND} needs a benchmark's name first; there are {names}", COMMAND)
    message = f"{COMMAND} has no benchmark '{word}'; there are {names}"
    if os.path.isdir(word):
        message += f"; the folder stands behind the name: {COMMAND} tensor {word}"
    usage_error(message, COMMAND)


def parse(argv: list[str]) -> Options:
    """The options, checked against each other. What is wrong exits with 2."""
    if argv[:1] != ["checkpoint"]:
        usage_error("only headrace bench checkpoint is written in Python", "headrace bench")
    benchmark = _benchmark(argv[1:])
    parser = _parser(benchmark)
    # Intermixed: FOLDER may stand before and behind options.
    values = vars(parser.parse_intermixed_args(_rows_apart(argv[2:])))
    place, folder = values.pop("place", None), values.pop("folder")
    if place and folder:
        parser.error("FOLDER and --folder exclude each other")
    if not place and not folder:
        parser.error(f"name a folder on the disk to measure, such as: {parser.prog} .")
    if benchmark != "tensor" and not values["model"]:
        parser.error("--model is required")
    values["rows"] = tuple(values["rows"])
    options = Options(benchmark=benchmark, folder=folder or place, **values)  # type: ignore[arg-type]
    if not os.path.isdir(options.folder):
        parser.error(f"the folder {options.folder} is not there, or is no folder")
    if options.optimizer and options.half and not options.gpu:
        parser.error(
            "--optimizer with --half needs --gpu: the optimizer's state of half precision is a GPU's"
        )
    if options.benchmark == "engine" and options.half and not options.gpu:
        parser.error("engine --half needs --gpu: DeepSpeed has no fp16 on the CPU")
    if options.safetensors and options.regular_torch_save:
        parser.error("--safetensors and --regular-torch-save are two ways to save: choose one")
    defaults = {field.name: field.default for field in fields(Options)}
    for name in WITHOUT_EFFECT[options.benchmark]:
        if getattr(options, name) != defaults[name]:
            print(f"headrace: {OPERATION}: --{name} changes nothing in {options.benchmark}", file=sys.stderr)
    return options
