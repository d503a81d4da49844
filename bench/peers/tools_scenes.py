# SPDX-License-Identifier: Apache-2.0
"""What tools.py measures: its scenes and the figures to reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import states
from checkpoint_scenes import files_for, in_words
from figures import Check
from scene import FIO, Entry, Scene, fio

MEMORY_MIB_MAX = 256
INSPECT_MS_MAX = 100

VERIFY = "headrace verify, torch zip"
VERIFY_STATS = "headrace verify --stats, safetensors"
VERIFY_AGAINST = "headrace verify --against, torch zip and safetensors"
TESTZIP = "Python's zipfile.testzip"
EQUAL = "torch.load and load_file, mapped, torch.equal"

TO_SAFETENSORS = "headrace convert, torch zip to safetensors"
TO_TORCH = "headrace convert, safetensors to torch zip"
TO_HALF = "headrace convert --dtype float16, torch zip to safetensors"
COPY_LOOP = "a bare loop of direct reads and writes, 4M x 16"
CP = "cp and sync"
SAVE_FILE = "torch.load, mapped, and save_file"

INSPECT = "headrace inspect, torch zip"
INSPECT_SAFETENSORS = "headrace inspect, safetensors"
TORCH_NAMES = "torch.load, mapped"


def verify_scene(tensors: dict[str, Any], program: str, no_huge_pages: str) -> Scene:
    """Reads whole files; --against two of them, whose bytes both count."""
    size = states.total(states.layout_of(tensors))
    common = {"tensors": tensors}
    ours, other = {"source": "headrace.pt"}, {"source": "headrace.safetensors"}
    one, two = ("verify",), ("against",)
    both = {**ours, "beside": "headrace.safetensors", "operations": two}
    entries = (
        replace(
            fio(FIO, no_huge_pages, "4M", 32),
            source="headrace.pt",
            does={"verify": "read", "against": "read"},
        ),
        tool(VERIFY, common, [program, "verify", "{path}"], says="good: ", operations=one, **ours),
        tool(VERIFY_STATS, common, [program, "verify", "--stats", "{path}"], operations=one, **other),
        tool(VERIFY_AGAINST, common, [program, "verify", "{path}", "--against", "{beside}"], **both),
        Entry(TESTZIP, "tool_torch", {**common, "does": "sums"}, operations=one, new_share=1.0, **ours),
        Entry(EQUAL, "tool_torch", {**common, "does": "against"}, new_share=2.0, **both),
    )
    title = f"verify {in_words(size)}, cold; against: two files of it"
    checks = tuple(verify_checks(in_words(size)))
    metrics = ("rate", "cpu", "memory", "time")
    files = files_for(entries, common)
    return Scene("verify", title, size, ("verify", "against"), entries, metrics, checks, files=files)


def verify_checks(words: str) -> Iterable[Check]:
    for contender, operation in ((VERIFY, "verify"), (VERIFY_STATS, "verify"), (VERIFY_AGAINST, "against")):
        title = f"{contender}, {words}: rate / fio"
        yield Check(title, "verify", operation, contender, "rate", ">=", 0.9, (FIO,))
        title = f"{contender}: memory"
        yield Check(title, "verify", operation, contender, "memory", "<=", MEMORY_MIB_MAX)


def convert_scene(tensors: dict[str, Any], program: str, copy_loop: str) -> Scene:
    """Each makes a durable file out of a cold one. The rate is that of reading; as much is written."""
    size = states.total(states.layout_of(tensors))
    common = {"tensors": tensors}
    convert = [program, "convert", "{source}", "{path}"]
    entries = (
        tool(
            TO_SAFETENSORS,
            common,
            [*convert, "--format", "safetensors"],
            result="safetensors",
            source="headrace.pt",
        ),
        tool(
            TO_TORCH, common, [*convert, "--format", "torch"], result="torch", source="headrace.safetensors"
        ),
        tool(
            TO_HALF,
            common,
            [*convert, "--format", "safetensors", "--dtype", "float16"],
            result="float16",
            source="headrace.pt",
        ),
        tool(COPY_LOOP, common, [copy_loop, "{source}", "{path}"], result="torch", source="headrace.pt"),
        tool(
            CP,
            common,
            ["cp", "--reflink=never", "{source}", "{path}"],
            then=["sync", "{path}"],
            result="torch",
            source="headrace.pt",
            new_share=2.0,
        ),
        Entry(SAVE_FILE, "tool_torch", {**common, "does": "convert"}, source="headrace.pt", new_share=2.0),
    )
    title = f"convert {in_words(size)}, cold, durable; GB/s read, and as much written"
    checks = tuple(convert_checks(in_words(size)))
    metrics = ("rate", "cpu", "memory", "time")
    files = files_for(entries, common)
    return Scene("convert", title, size, ("convert",), entries, metrics, checks, files=files)


def convert_checks(words: str) -> Iterable[Check]:
    for contender in (TO_SAFETENSORS, TO_TORCH, TO_HALF):
        title = f"{contender}, {words}: rate / a bare loop"
        yield Check(title, "convert", "convert", contender, "rate", ">=", 0.9, (COPY_LOOP,))
        title = f"{contender}: memory"
        yield Check(title, "convert", "convert", contender, "memory", "<=", MEMORY_MIB_MAX)


def inspect_scene(tensors: dict[str, Any], program: str) -> Scene:
    """The names, types and shapes in a large cold file, its process started for it."""
    size = states.total(states.layout_of(tensors))
    common = {"tensors": tensors}
    command = [program, "inspect", "{path}"]
    entries = (
        tool(INSPECT, common, command, says="embedding", source="headrace.pt"),
        tool(INSPECT_SAFETENSORS, common, command, says="embedding", source="headrace.safetensors"),
        Entry(TORCH_NAMES, "tool_torch", {**common, "does": "names"}, source="headrace.pt"),
    )
    checks = tuple(
        Check(
            f"inspect {in_words(size)}, ms, {name}", "inspect", "inspect", name, "time", "<=", INSPECT_MS_MAX
        )
        for name in (INSPECT, INSPECT_SAFETENSORS)
    )
    title = f"inspect a file of {in_words(size)}, cold"
    metrics = ("time", "cpu_time")
    files = files_for(entries, common)
    return Scene("inspect", title, size, ("inspect",), entries, metrics, checks, files=files)


def tool(name: str, common: dict[str, Any], command: list[str], **more: Any) -> Entry:
    """An entry for a program."""
    own = {key: more.pop(key) for key in ("then", "result", "says") if key in more}
    return Entry(name, "tool", {**common, "command": command, **own}, **more)
