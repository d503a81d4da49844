# SPDX-License-Identifier: Apache-2.0
"""Markdown from a result file: figures to reach, every contender, what was skipped, how it was run."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable
from typing import Any

from figures import METRICS, Check, Sample, Verdict, by_contender, judge, values_of

KINDS = ("raw", "checkpoint", "tools")


def format_of(kind: str) -> str:
    """What a result file says that it is. Kinds differ in their scenes only; see bench/README.md."""
    return f"headrace {kind} results, version 1"


def render(result: dict[str, Any]) -> str:
    """The whole report."""
    known = [format_of(kind) for kind in KINDS]
    if result.get("format") not in known:
        raise ValueError(f"not a result file of a known format ({'; '.join(known)})")
    samples = [Sample(**sample) for sample in result["samples"]]
    checks = [
        Check(**{**check, "references": tuple(check["references"])})
        for scene in result["scenes"]
        for check in scene["checks"]
    ]
    lines = ["## Figures to reach", "", *checks_table([judge(check, samples) for check in checks])]
    for scene in result["scenes"]:
        lines += ["", f"## {scene['title']}", ""]
        for operation in scene["operations"]:
            lines += scene_table(samples, scene, operation)
    lines += ["", *skipped_lines(result["skipped"]), "", *how_lines(result)]
    return "\n".join(lines) + "\n"


def verdicts(result: dict[str, Any]) -> list[Verdict]:
    """The checks of a result, judged."""
    samples = [Sample(**sample) for sample in result["samples"]]
    found = []
    for scene in result["scenes"]:
        for check in scene["checks"]:
            found.append(judge(Check(**{**check, "references": tuple(check["references"])}), samples))
    return found


def checks_table(judged: Iterable[Verdict]) -> list[str]:
    """One line per figure to reach."""
    lines = ["| what | to reach | measured | interval | |", "| --- | --- | --- | --- | --- |"]
    for verdict in judged:
        check, interval = verdict.check, verdict.interval
        digits = 3 if check.references else METRICS[check.metric].digits
        unit = " x" if check.references else f" {METRICS[check.metric].unit}"
        target = f"{'≥' if check.sign == '>=' else '≤'} {check.target:g}{unit}"
        title = check.title
        if len(check.references) > 1 or check.references == ("*",):
            title += f" ({verdict.reference})" if verdict.reference else ""
        if interval is None:
            lines.append(f"| {title} | {target} | | | {verdict.word} |")
            continue
        low, high = (f"{value:.{digits}f}" for value in (interval.low, interval.high))
        span = f"{low}..{high} ({interval.probability:.0%}, n={interval.count})"
        lines.append(f"| {title} | {target} | {interval.median:.{digits}f} | {span} | {verdict.word} |")
    return lines


def scene_table(samples: list[Sample], scene: dict[str, Any], operation: str) -> list[str]:
    """One line per contender, the best first."""
    found = by_contender(samples, scene["name"], operation)
    metrics = [name for name in scene["metrics"] if any(values_of(rounds, name) for rounds in found.values())]
    if not found or not metrics:
        return []
    heads = [METRICS[name].unit for name in metrics]
    lines = [
        f"| {operation.replace('_', ' ')} | " + " | ".join(heads) + " | rounds |",
        "| --- |" + " --- |" * (len(heads) + 1),
    ]
    rows = []
    for name, rounds in found.items():
        cells, first = [], 0.0
        for metric in metrics:
            values = values_of(rounds, metric)
            digits = METRICS[metric].digits
            if not values:
                cells.append("")
                continue
            middle = statistics.median(values)
            if metric == metrics[0]:
                first = -middle if METRICS[metric].more_is_better else middle
            cells.append(f"{middle:.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})")
        rows.append((first, f"| {name} | " + " | ".join(cells) + f" | {len(rounds)} |"))
    return [*lines, *(row for _, row in sorted(rows)), ""]


def skipped_lines(skipped: list[dict[str, str]]) -> list[str]:
    """Counted, with reasons."""
    lines = [f"Skipped or failed: {len(skipped)}"]
    return lines + [
        f"- {one['kind']} in {one['scene']}: {one['contender']}: {one['reason']}" for one in skipped
    ]


def how_lines(result: dict[str, Any]) -> list[str]:
    """Where the figures come from."""
    machine, disk = result["machine"], result["machine"]["disk"]
    first, last = result["load"]
    kind = "virtual machine" if machine["virtual"] else "machine"
    device = disk.get("model") or disk.get("driver") or disk.get("device", "unknown")
    return [
        f"Medians (smallest..largest), {result['started']}, commit {machine['commit'] or 'unknown'}. "
        f"{machine['cpus_usable']} CPUs, {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{kind}, Linux {machine['kernel']}, {disk.get('file_system', 'unknown')} on {device}; "
        f"{'root' if machine['root'] else 'ordinary user'}; "
        f"load average {first:.1f} before, {last:.1f} after.",
        "",
        f"    {shlex.join(result['command'])}",
    ]
