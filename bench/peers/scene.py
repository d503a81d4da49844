# SPDX-License-Identifier: Apache-2.0
"""What a scene is: contenders that take turns on the same work, and the figures to reach."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from figures import Check

ORDINARY_LOCKED_BYTES = 8 << 20
FIO = "fio io_uring fixed, 4M x 32"


@dataclass(frozen=True)
class Entry:
    """A contender in a scene. Each has a process of its own, but those with the same `process` share one."""

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    turn: dict[str, Any] = field(default_factory=dict)  # options of each turn
    ordinary_user: bool = False
    operations: tuple[str, ...] = ()  # all of the scene's when empty
    does: dict[str, str] = field(default_factory=dict)  # where its name for an operation is not the scene's
    source: str = ""  # the file it reads, a name in the scratch folder; the run's stamped one when empty
    beside: str = ""  # another file there that it reads in the same turn
    new_share: float = 0.0  # of the work's bytes: memory taken anew in each call, page cache included
    fresh: bool = False  # a new process for every turn
    process: str = ""


@dataclass(frozen=True)
class Scene:
    """Contenders take turns on `size` bytes, in each operation; `metrics` are what the report shows."""

    name: str
    title: str
    size: int
    operations: tuple[str, ...]
    entries: tuple[Entry, ...]
    metrics: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    rounds: int | None = None  # other than asked for
    files: tuple[
        Entry, ...
    ] = ()  # savers; each makes the file that it names as its source, before the first round

    def as_json(self) -> dict[str, Any]:
        """What a report needs of it."""
        return {
            "name": self.name,
            "title": self.title,
            "size": self.size,
            "operations": self.operations,
            "metrics": self.metrics,
            "checks": [asdict(check) for check in self.checks],
        }


def fio(name: str, no_huge_pages: str, block: str, depth: int, **more: Any) -> Entry:
    """An entry for fio; `no_huge_pages` says why it must be skipped, or nothing."""
    ordinary = bool(more.pop("ordinary_user", False))
    options = {"block": block, "depth": depth, "no_huge_pages": no_huge_pages, **more}
    return Entry(name, "fio", options, ordinary_user=ordinary)
