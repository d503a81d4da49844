# SPDX-License-Identifier: Apache-2.0
"""What raw.py measures: its scenes and the figures to reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from figures import ANY_OTHER, Check
from scene import FIO, Entry, Scene, fio
from stamps import PIECE

MIB = 1 << 20

HEADRACE = "headrace"
ORDINARY = "headrace, ordinary user, 8 MiB locked"
FIO_NOT_FIXED = "fio io_uring, ordinary user, 8 MiB locked, 4M x 32"
DEEPSPEED = "DeepSpeed aio_handle, defaults"
DEEPSPEED_TUNED = "DeepSpeed aio_handle, tuned"
UNDER_NAMES = "headrace.deepnvme, defaults"
UNDER_NAMES_TUNED = "headrace.deepnvme, tuned"
PYTHON = "plain Python file I/O"
TENSOR = "headrace, ordinary tensor"
TENSOR_ORDINARY = "headrace, ordinary tensor, ordinary user"
UNPINNED = "DeepSpeed aio_handle, ordinary tensor, defaults"
UNPINNED_TUNED = "DeepSpeed aio_handle, ordinary tensor, tuned"
HANDLE = "headrace Handle()"

# block size, queue depth, single_submit, overlap_events, threads
AIO_DEFAULTS = [1 << 20, 128, False, False, 1]
AIO_TUNED = [8 << 20, 32, False, True, 2]


def aio(name: str, module: str, arguments: list[Any], pinned: bool, new_share: float = 0.0) -> Entry:
    options = {"module": module, "arguments": arguments, "pinned": pinned}
    return Entry(name, "aio_handle", options, new_share=new_share)


def main_scene(rows: set[str], size: int, no_huge_pages: str) -> Scene:
    """The big reads and writes, against the limit and against DeepSpeed."""
    operations = [name for name in ("read", "write") if {name, "deepnvme"} & rows]
    if "write" in operations:
        operations.append("replace")
    plain = ("read", "write")
    entries = [
        replace(fio(FIO, no_huge_pages, "4M", 32), operations=plain),
        Entry(HEADRACE, "headrace"),
        Entry(ORDINARY, "headrace", ordinary_user=True),
    ]
    if {"read", "write"} & rows:
        entries += [
            replace(
                fio(FIO_NOT_FIXED, no_huge_pages, "4M", 32, fixed=False, ordinary_user=True), operations=plain
            ),
            Entry(PYTHON, "plain_python", operations=plain, new_share=1.0),
        ]
    if "deepnvme" in rows:
        entries += [
            replace(aio(name, module, arguments, pinned=True), operations=plain)
            for name, module, arguments in (
                (DEEPSPEED, "deepspeed", AIO_DEFAULTS),
                (DEEPSPEED_TUNED, "deepspeed", AIO_TUNED),
                (UNDER_NAMES, "headrace.deepnvme", AIO_DEFAULTS),
                (UNDER_NAMES_TUNED, "headrace.deepnvme", AIO_TUNED),
            )
        ]
    checks = [*raw_checks(rows), *(deepnvme_checks() if "deepnvme" in rows else ())]
    title = f"{size / 2**30:g} GiB from and to memory used before"
    return Scene(
        "main", title, size, tuple(operations), tuple(entries), ("rate", "cpu", "memory"), tuple(checks)
    )


def raw_checks(rows: set[str]) -> Iterable[Check]:
    """Against fio, and CPU time."""
    for operation, cpu in (("read", (0.006, 0.009)), ("write", (0.02, 0.02))):
        if operation in rows:
            for name, limit in zip((HEADRACE, ORDINARY), cpu, strict=True):
                rate = f"{operation} rate, {name} / fio"
                yield Check(rate, "main", operation, name, "rate", ">=", 0.98, (FIO,))
                yield Check(f"{operation} CPU, {name}", "main", operation, name, "cpu", "<=", limit)
    if "write" in rows:
        # A replace makes, preallocates, renames and syncs inside the time; fio does none of that there.
        yield Check("replace CPU, headrace", "main", "replace", HEADRACE, "cpu", "<=", 0.02)


def deepnvme_checks() -> Iterable[Check]:
    """Against DeepSpeed in pinned memory."""
    targets = (("read", DEEPSPEED, 1.35), ("read", DEEPSPEED_TUNED, 1.2), ("write", DEEPSPEED, 1.35))
    for operation, reference, target in (*targets, ("write", DEEPSPEED_TUNED, 1.12)):
        same = UNDER_NAMES if reference == DEEPSPEED else UNDER_NAMES_TUNED
        for name in (HEADRACE, same):
            title = f"{operation} rate, {name} / {reference}"
            yield Check(title, "main", operation, name, "rate", ">=", target, (reference,))
            if operation == "read":
                title = f"read CPU, {name} / {reference}"
                yield Check(title, "main", "read", name, "cpu", "<=", 0.25, (reference,))


def small_scene(size: int, no_huge_pages: str) -> Scene:
    """Ordinary torch tensors: small pages, and a pointer that direct I/O does not take."""
    entries = (
        fio(FIO, no_huge_pages, "4M", 32),
        Entry(HEADRACE, "headrace"),
        Entry(TENSOR, "headrace", {"memory": "tensor"}),
        Entry(TENSOR_ORDINARY, "headrace", {"memory": "tensor"}, ordinary_user=True),
        aio(UNPINNED, "deepspeed", AIO_DEFAULTS, pinned=False, new_share=1.0),
        aio(UNPINNED_TUNED, "deepspeed", AIO_TUNED, pinned=False, new_share=1.0),
        Entry(PYTHON, "plain_python", new_share=1.0),
    )
    checks = []
    for operation, target in (("read", 0.87), ("write", 0.92)):
        for name in (TENSOR, TENSOR_ORDINARY):
            title = f"{operation} rate, {name} / headrace into a Buffer"
            checks.append(Check(title, "small", operation, name, "rate", ">=", target, (HEADRACE,)))
            checks.append(Check(f"{operation} CPU, {name}", "small", operation, name, "cpu", "<=", 0.11))
        both = (UNPINNED, UNPINNED_TUNED)
        for metric, sign in (("rate", ">="), ("cpu", "<="), ("memory", "<=")):
            title = f"{operation} {metric}, {TENSOR} / the better DeepSpeed"
            checks.append(Check(title, "small", operation, TENSOR, metric, sign, 1.0, both))
        checks.append(
            Check(f"{operation} memory, {TENSOR}", "small", operation, TENSOR, "memory", "<=", 256 + 16)
        )
    title = f"{size / 2**30:g} GiB from and to an ordinary torch tensor"
    metrics = ("rate", "cpu", "memory")
    return Scene("small", title, size, ("read", "write"), entries, metrics, tuple(checks))


def random_scene(size: int, no_huge_pages: str, program: str, seconds: int) -> Scene:
    options = {"program": program, "block": 4096, "depth": 32, "ahead": 256, "workers": 1, "seconds": seconds}
    reference = "fio io_uring fixed, 4k x 32"
    plain = "fio io_uring, 4k x 32"
    entries = (
        fio(reference, no_huge_pages, "4k", 32, seconds=seconds),
        fio(plain, no_huge_pages, "4k", 32, seconds=seconds, fixed=False),
        Entry(HEADRACE, "random_read", options),
        Entry("headrace, 32 handed in", "random_read", options | {"ahead": 32}),
    )
    title = f"random reads of 4 KiB, depth 32, one worker, {seconds} s each"
    checks = (
        Check(
            "requests/s, headrace / fio",
            "random",
            "random_read",
            HEADRACE,
            "requests",
            ">=",
            0.95,
            (reference, plain),
        ),
    )
    return Scene("random", title, size, ("random_read",), entries, ("requests", "cpu_request"), checks)


def bulk_scene(count: int, no_huge_pages: str) -> Scene:
    depths = {f"fio io_uring fixed, 64k x {depth}": depth for depth in (32, 64, 128)}
    entries = (
        Entry(HEADRACE, "headrace"),
        *(fio(name, no_huge_pages, "64k", depth) for name, depth in depths.items()),
    )
    operations = ("bulk_read", "bulk_random_read", "bulk_write")
    checks = tuple(
        Check(
            f"{operation} rate, headrace / the best fio depth",
            "bulk",
            operation,
            HEADRACE,
            "rate",
            ">=",
            0.9,
            tuple(depths),
        )
        for operation in operations
    )
    title = f"{count:,} requests of 64 KiB in one call"
    return Scene("bulk", title, count * PIECE, operations, entries, ("rate", "cpu", "cpu_request"), checks)


def sweep_settings() -> dict[str, dict[str, int]]:
    """Arguments of Handle() by name: block, depth and workers in every combination."""
    return {
        f"block {block} MiB, depth {depth}, workers {workers}": {
            "block_bytes": block * MIB,
            "queue_depth": depth,
            "workers": workers,
        }
        for block in (1, 2, 4, 8)
        for depth in (8, 16, 32, 64)
        for workers in (1, 2)
    }


def sweep_scene(size: int, names: Iterable[str] | None, rounds: int | None) -> Scene:
    """The defaults beside the settings in `names` (all of them: None). One worker holds all the handles."""
    settings = {
        name: value for name, value in sweep_settings().items() if names is None or name in set(names)
    }
    entries = [Entry("defaults", "headrace", process="sweep")]
    entries += [
        Entry(name, "headrace", turn={"handle": value}, process="sweep") for name, value in settings.items()
    ]
    if names is None:
        title = "every setting, few rounds, to choose the best"
        return Scene("sweep-all", title, size, ("read", "write"), tuple(entries), ("rate", "cpu"), (), rounds)
    checks = tuple(
        Check(
            f"{operation} rate, defaults / best setting",
            "sweep",
            operation,
            "defaults",
            "rate",
            ">=",
            0.95,
            (ANY_OTHER,),
        )
        for operation in ("read", "write")
    )
    title = "defaults beside the best settings"
    return Scene("sweep", title, size, ("read", "write"), tuple(entries), ("rate", "cpu"), checks)


def idle_scene(size: int) -> Scene:
    entries = (Entry(HANDLE, "headrace_handle", fresh=True),)
    checks = (
        Check("making a handle, ms", "idle", "create", HANDLE, "time", "<=", 10.0),
        Check("first 4 KiB through it, ms", "idle", "first", HANDLE, "time", "<=", 5.0),
        Check("CPU of its threads in 5 idle seconds, ms", "idle", "idle", HANDLE, "cpu_time", "<=", 0.0),
    )
    return Scene(
        "idle",
        "a handle in a fresh process",
        size,
        ("create", "first", "idle"),
        entries,
        ("time", "cpu_time"),
        checks,
    )
