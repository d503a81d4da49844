# SPDX-License-Identifier: Apache-2.0
"""What checkpoint.py measures: its scenes and the figures to reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import states
from figures import Check
from scene import FIO, Entry, Scene, fio

MEMORY_MIB_MAX = 256 + 16  # staging and header
PROCESS_BYTES = 300 << 20  # of torch and what else a contender imports

HEADRACE = "headrace, torch zip"
HEADRACE_SAFETENSORS = "headrace, safetensors"
HEADRACE_FOREIGN = "headrace, torch zip of torch.save"
HEADRACE_INTO = "headrace into=, torch zip"
HEADRACE_SAFETENSORS_INTO = "headrace into=, safetensors"
HEADRACE_MAPPED = "headrace mmap=True, torch zip"
HEADRACE_SAFETENSORS_MAPPED = "headrace mmap=True, safetensors"

TORCH_ZIP = "torch.save zip"
TORCH_LEGACY = "torch.save legacy"
SAVE_FILE = "safetensors save_file"
FASTPERSIST = "FastPersist, legacy"
DCP = "torch DCP, 2 threads"
SERIALIZER = "tensorizer"
SAVING_PEERS = (TORCH_ZIP, TORCH_LEGACY, SAVE_FILE, FASTPERSIST, DCP, SERIALIZER)

BARE_LOOP = "a bare loop of direct reads, no sums"
TORCH_LOAD = "torch.load"
TORCH_MAPPED = "torch.load mmap=True"
TORCH_INTO = "torch.load mmap=True, copied"
LOAD_FILE = "safetensors load_file"
LOAD_FILE_PREAD = "safetensors load_file pread"
LOAD_FILE_INTO = "safetensors load_file, copied"
DESERIALIZER = "tensorizer"
RUNAI = "Run:ai model streamer"
FASTSAFETENSORS = "fastsafetensors"
COPYING_PEERS = (TORCH_LOAD, LOAD_FILE_PREAD, DESERIALIZER, RUNAI, FASTSAFETENSORS)
MAPPING_PEERS = (TORCH_MAPPED, LOAD_FILE)


def save_scene(name: str, tensors: dict[str, Any], keep: bool, no_huge_pages: str) -> Scene:
    """The row `name`: everybody saves the same tensors, and fio writes as many bytes into a prepared file.

    Each process keeps its tensors, or makes them anew for each turn where all together would not fit.
    """
    size = states.total(states.layout_of(tensors))
    common = {"tensors": tensors, "keep": keep}
    entries = (
        replace(fio(FIO, no_huge_pages, "4M", 32), does={"save": "write"}),
        Entry(HEADRACE, "save_headrace", common),
        Entry(HEADRACE_SAFETENSORS, "save_headrace", {**common, "format": "safetensors"}),
        Entry(TORCH_ZIP, "save_torch", common, new_share=1.0),
        Entry(TORCH_LEGACY, "save_torch", {**common, "legacy": True}, new_share=1.0),
        Entry(SAVE_FILE, "save_safetensors", common, new_share=1.0),
        Entry(FASTPERSIST, "save_fastpersist", common, new_share=1.0),
        Entry(DCP, "save_dcp", common, new_share=1.0),
        Entry(SERIALIZER, "save_tensorizer", common, new_share=1.0),
    )
    words = f"{in_words(size)} in {tensors['many']:,} tensors" if "many" in tensors else in_words(size)
    checks = tuple(save_checks(name, words))
    title = f"save {words}, durable"
    return Scene(name, title, size, ("save",), entries, ("rate", "cpu", "memory", "time"), checks)


def save_checks(name: str, words: str) -> Iterable[Check]:
    """Ratios of the rate by row, and CPU time and memory where much is saved."""

    def ratio(contender: str, target: float, references: tuple[str, ...], whom: str) -> Check:
        title = f"save {words}, rate, {contender} / {whom}"
        return Check(title, name, "save", contender, "rate", ">=", target, references)

    if name == "save-many":
        for contender, target in ((HEADRACE, 0.5), (HEADRACE_SAFETENSORS, 0.7)):
            yield ratio(contender, target, (FIO,), "fio")
            yield ratio(contender, 1.0, SAVING_PEERS, "the best peer")
    elif name == "save-100m":
        yield ratio(HEADRACE, 0.75, (FIO,), "fio")
        yield ratio(HEADRACE, 1.15, SAVING_PEERS, "the best peer")
    else:
        yield ratio(HEADRACE, 0.92, (FIO,), "fio")
        for reference, target in ((TORCH_ZIP, 2.4), (SAVE_FILE, 1.8), (FASTPERSIST, 2.0)):
            yield ratio(HEADRACE, target, (reference,), reference)
        yield Check(f"save {words}, CPU, {HEADRACE}", name, "save", HEADRACE, "cpu", "<=", 0.13)
        for contender in (HEADRACE, HEADRACE_SAFETENSORS):
            title = f"save {words}, memory, {contender}"
            yield Check(title, name, "save", contender, "memory", "<=", MEMORY_MIB_MAX)


def load_scene(tensors: dict[str, Any], no_huge_pages: str) -> Scene:
    """Cold into tensors that are there, cold into new ones, and both kinds of loading from the page cache."""
    size = states.total(states.layout_of(tensors))
    common = {"tensors": tensors}
    safetensors = {**common, "format": "safetensors"}
    mapped = {**common, "mmap": True}
    new, into, maps = ("load", "load_warm"), ("load_into",), ("load", "map_warm")
    ours, ours_safetensors = {"source": "headrace.pt"}, {"source": "headrace.safetensors"}
    theirs, theirs_safetensors = {"source": "torch.pt"}, {"source": "safetensors.safetensors"}

    def entry(
        name: str,
        kind: str,
        options: dict[str, Any],
        operations: tuple[str, ...],
        new_share: float,
        **more: Any,
    ) -> Entry:
        return Entry(name, kind, options, operations=operations, new_share=new_share, **more)

    entries = (
        replace(
            fio(FIO, no_huge_pages, "4M", 32),
            operations=("load", "load_into"),
            source="headrace.pt",  # where a file lies on the disk alone made 15 % of difference
            does={"load": "read", "load_into": "read"},
        ),
        entry(HEADRACE, "load_headrace", common, new, 1.0, **ours),
        entry(HEADRACE_SAFETENSORS, "load_headrace", safetensors, new, 1.0, **ours_safetensors),
        entry(HEADRACE_FOREIGN, "load_headrace", common, new, 1.0, **theirs),
        entry(HEADRACE_INTO, "load_headrace", {**common, "into": True}, into, 0.0, **ours),
        entry(
            HEADRACE_SAFETENSORS_INTO,
            "load_headrace",
            {**safetensors, "into": True},
            into,
            0.0,
            **ours_safetensors,
        ),
        entry(HEADRACE_MAPPED, "load_headrace", mapped, maps, 1.0, **ours),
        entry(
            HEADRACE_SAFETENSORS_MAPPED,
            "load_headrace",
            {**safetensors, "mmap": True},
            maps,
            1.0,
            **ours_safetensors,
        ),
        entry(BARE_LOOP, "load_bare", common, ("load",), 1.0, **ours_safetensors),
        entry(TORCH_LOAD, "load_torch", common, new, 2.0, **theirs),
        entry(TORCH_MAPPED, "load_torch", mapped, maps, 1.0, **theirs),
        entry(TORCH_INTO, "load_torch", {**mapped, "into": True}, into, 1.0, **theirs),
        entry(LOAD_FILE, "load_safetensors", common, maps, 1.0, **theirs_safetensors),
        entry(
            LOAD_FILE_PREAD,
            "load_safetensors",
            {**common, "backend": "pread"},
            new,
            2.0,
            **theirs_safetensors,
        ),
        entry(LOAD_FILE_INTO, "load_safetensors", {**common, "into": True}, into, 1.0, **theirs_safetensors),
        entry(DESERIALIZER, "load_tensorizer", common, new, 2.0, source="tensorizer.tensors"),
        entry(RUNAI, "load_runai", common, new, 2.0, **theirs_safetensors),
        entry(FASTSAFETENSORS, "load_fastsafetensors", common, new, 2.0, **theirs_safetensors),
    )
    operations = ("load_into", "load", "load_warm", "map_warm")
    title = f"load {in_words(size)}: cold into existing tensors, cold into new ones; from the page cache"
    metrics = ("rate", "cpu", "memory", "time")
    checks = tuple(load_checks(in_words(size)))
    return Scene("load", title, size, operations, entries, metrics, checks, files=files_for(entries, common))


def load_checks(words: str) -> Iterable[Check]:
    """Against fio and the best peer from the disk; never slower than a peer from the page cache."""

    def check(
        operation: str, contender: str, metric: str, target: float, *whom: str, best: str = ""
    ) -> Check:
        name = f"{operation.replace('_', ' ')} {words}, {metric}, {contender}"
        title = f"{name} / {best or whom[0]}" if whom else name
        sign = ">=" if metric == "rate" else "<="
        return Check(title, "load", operation, contender, metric, sign, target, whom)

    yield check("load_into", HEADRACE_INTO, "rate", 0.87, FIO, best="fio")
    yield check("load_into", HEADRACE_INTO, "cpu", 0.12)
    yield check("load_into", HEADRACE_INTO, "memory", MEMORY_MIB_MAX)
    for contender in (HEADRACE, HEADRACE_SAFETENSORS):
        yield check("load", contender, "rate", 0.88, FIO, best="fio")
        yield check("load", contender, "rate", 1.1, *COPYING_PEERS, *MAPPING_PEERS, best="the best peer")
        yield check("load", contender, "cpu", 0.13)
        yield check("load", contender, "cpu", 1.3, BARE_LOOP, best="a bare loop")
        yield check("load", contender, "memory", MEMORY_MIB_MAX)
    for contender in (HEADRACE, HEADRACE_SAFETENSORS, HEADRACE_FOREIGN):
        yield check("load_warm", contender, "rate", 1.0, *COPYING_PEERS, best="the best copying peer")
    for contender in (HEADRACE_MAPPED, HEADRACE_SAFETENSORS_MAPPED):
        yield check("map_warm", contender, "time", 1.0, *MAPPING_PEERS, best="the best mapping peer")


def slice_scene(tensors: dict[str, Any]) -> Scene:
    """1 MB of rows out of a large file, which is opened for it."""
    size = states.total(states.layout_of(tensors))
    common = {"tensors": tensors}
    safetensors = {**common, "format": "safetensors"}
    entries = (
        Entry(HEADRACE, "slice_headrace", common, source="headrace.pt"),
        Entry(HEADRACE_SAFETENSORS, "slice_headrace", safetensors, source="headrace.safetensors"),
        Entry("torch.load mmap=True", "slice_torch", common, source="torch.pt"),
        Entry("safetensors get_slice", "slice_safetensors", common, source="safetensors.safetensors"),
    )
    checks = tuple(
        Check(f"slice of 1 MB, ms, {name}", "slice", "slice", name, "time", "<=", 5.0)
        for name in (HEADRACE, HEADRACE_SAFETENSORS)
    )
    title = f"a slice of 1 MB out of a file of {in_words(size)}, opened for it, cold"
    metrics = ("time", "cpu_time")
    return Scene("slice", title, size, ("slice",), entries, metrics, checks, files=files_for(entries, common))


def files_for(entries: Iterable[Entry], common: dict[str, Any]) -> tuple[Entry, ...]:
    """Who makes the files that these contenders read: each format's own writer, with its defaults."""
    savers = {
        "headrace.pt": Entry("the file of headrace.save, torch zip", "save_headrace", common),
        "headrace.safetensors": Entry(
            "the file of headrace.save, safetensors", "save_headrace", {**common, "format": "safetensors"}
        ),
        "torch.pt": Entry("the file of torch.save", "save_torch", common),
        "safetensors.safetensors": Entry("the file of save_file", "save_safetensors", common),
        "tensorizer.tensors": Entry("the file of tensorizer", "save_tensorizer", common),
    }
    names = sorted({name for entry in entries for name in (entry.source, entry.beside) if name})
    return tuple(replace(savers[name], source=name) for name in names)


def memory_needed(scene: Scene) -> int:
    """Its processes, what they keep from turn to turn, and one of them at work, with page cache."""
    keeping = sum(bool(entry.options.get("keep") or entry.options.get("into")) for entry in scene.entries)
    return len(scene.entries) * PROCESS_BYTES + (keeping + 3) * scene.size


def files_needed(scene: Scene) -> int:
    """Bytes of its files beside the stamped source: those that are read, and one that is written."""
    return (len(scene.files) + 1) * scene.size


def in_words(size: int) -> str:
    """In units of 10^9 or 10^6 bytes."""
    return f"{size / 1e9:.3g} GB" if size >= 995e6 else f"{size / 1e6:.3g} MB"
