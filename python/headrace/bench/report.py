# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found: the guide's lines as it goes (GB are 2^30 there), ours at the end (10^9)."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .._measure import IN_MEMORY, IN_MEMORY_NOTE
from .command import print_json, printable
from .memory import COLD_SHARE_MAX

if TYPE_CHECKING:
    from .command import Progress

STARS = "*" * 45
UNITS = """\
In lines with "GB, ... secs, ... GB/s" a GB is 2^30 bytes, as DeepSpeed's guide prints
them; in the table at the end it is 10^9 bytes."""
# What a row promises of its bytes when the clock stops.
NOTHING = "nothing written"
NOT_SYNCED = "not synced, not atomic"
SYNCED = "synced, not atomic"
DURABLE = "durable, atomic"


@dataclass
class Row:
    """One way to save: its rounds, or the reason why it was left out."""

    tag: str
    durability: str
    size_bytes: int = 0
    seconds: list[float] = field(default_factory=list)
    loads: dict[str, list[float]] = field(default_factory=dict)
    cached_shares: dict[str, list[float | None]] = field(default_factory=dict)  # before each of the loads
    notes: list[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def gb_per_s(self) -> float | None:
        """10^9 bytes of the file per second, the median of the rounds; None if no byte was written."""
        if not self.seconds or self.durability == NOTHING:
            return None
        return self.size_bytes / statistics.median(self.seconds) / 1e9

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def guide_line(size_bytes: int, rated_bytes: int, seconds: float) -> str:
    """SIZE GB, SECS secs, RATE GB/s: of 2^30 bytes, as the guide's scripts print them. No rate of 0 bytes."""
    rate = f"{rated_bytes / 2**30 / seconds:5.2f}" if size_bytes else f"{'-':>5}"
    return f"{size_bytes / 2**30:5.2f} GB, {seconds:5.2f} secs, {rate} GB/s"


def cache_words(shares: list[float | None]) -> str:
    """Of a file before it was loaded: cold only if it was each time; empty where the kernel does not tell."""
    known = [share for share in shares if share is not None]
    if known and max(known) > COLD_SHARE_MAX:
        return f", {max(known):.0%} cached"
    return ", cold" if len(known) == len(shares) else ""


class Report:
    """The rows of one command, and the facts of this machine."""

    def __init__(self, benchmark: str, facts: dict[str, object], progress: Progress) -> None:
        self.benchmark = benchmark
        self.facts = facts
        self.progress = progress
        self.kept: str | None = None  # the folder, with --keep
        self.rows: list[Row] = []

    def row(self, tag: str, durability: str) -> Row:
        """The row of that tag; a new one at the first time."""
        found = next((row for row in self.rows if row.tag == tag), None)
        if found is None:
            found = Row(tag, durability)
            self.rows.append(found)
        return found

    def skip(self, tag: str, reason: str) -> None:
        self.row(tag, "").skipped = reason
        self.progress.clear()
        print(f"{tag} -- skipped: {printable(reason)}\n{STARS}", flush=True)

    def print_summary(self) -> None:
        """Medians, in our units."""
        shown = [row for row in self.rows if row.seconds]
        names = [row.tag for row in shown] + [f"  loaded by {way}" for row in shown for way in row.loads]
        width = max(map(len, names), default=0)
        if shown:
            print(f"medians of {len(shown[0].seconds)}; a GB is 10^9 bytes")
        for row in shown:
            size_bytes = 0 if row.durability == NOTHING else row.size_bytes
            print(f"  {row.tag:{width}}  {_figures(size_bytes, row.seconds)}  {row.durability}")
            for way, seconds in row.loads.items():
                figures = _figures(row.size_bytes, seconds)
                print(f"  {'  loaded by ' + way:{width}}  {figures}{cache_words(row.cached_shares[way])}")
            for note in row.notes:
                print(f"      {printable(note)}")
        if self.kept:
            print(f"kept: {printable(self.kept)}")
        where = str(self.facts.get("file system"))
        if where in IN_MEMORY:
            print(IN_MEMORY_NOTE.format(where))

    def print_json(self) -> None:
        rows: list[dict[str, Any]] = [{**asdict(row), "gb_per_s": row.gb_per_s} for row in self.rows]
        head: dict[str, object] = {"schema": "headrace.bench-checkpoint", "version": 1}
        found = {"benchmark": self.benchmark, "machine": self.facts, "rows": rows, "kept": self.kept}
        print_json(head | found)


def _figures(size_bytes: int, seconds: list[float]) -> str:
    median = statistics.median(seconds)
    rate = f"{size_bytes / median / 1e9:6.2f} GB/s" if size_bytes else f"{'-':>11}"
    return f"{size_bytes / 1e9:8.3f} GB  {median:8.3f} s  {rate}"
