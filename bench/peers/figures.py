# SPDX-License-Identifier: Apache-2.0
"""Samples and what is made of them: medians, intervals, paired ratios, verdicts. Pure arithmetic."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

CONFIDENCE = 0.95
ANY_OTHER = "*"


@dataclass
class Sample:
    """One timed call of one contender. Round 0 is the warm-up, which no figure counts."""

    scene: str
    operation: str
    contender: str
    round: int
    bytes: int
    requests: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int | None = None  # of resident memory during the call
    baseline_bytes: int | None = (
        None  # with the data in memory, before the contender made anything of its own
    )
    load: float = 0.0  # load average of one minute just before
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Metric:
    """A figure that a sample yields."""

    unit: str
    digits: int
    more_is_better: bool = False


METRICS = {
    "rate": Metric("GB/s", 2, more_is_better=True),
    "cpu": Metric("cpu-s/GB", 4),
    "requests": Metric("requests/s", 0, more_is_better=True),
    "cpu_request": Metric("cpu-µs/request", 2),
    "time": Metric("ms", 3),
    "cpu_time": Metric("cpu-ms", 3),
    "memory": Metric("MiB beside the data", 0),
}


def value_of(sample: Sample, metric: str) -> float | None:
    """The figure, or None when the sample does not have it."""
    gigabytes = sample.bytes / 1e9
    match metric:
        case "rate":
            return gigabytes / sample.seconds
        case "cpu":
            return sample.cpu_seconds / gigabytes
        case "requests":
            return sample.requests / sample.seconds
        case "cpu_request":
            return sample.cpu_seconds / sample.requests * 1e6
        case "time":
            return sample.seconds * 1e3
        case "cpu_time":
            return sample.cpu_seconds * 1e3
        case "memory":
            if sample.peak_bytes is None or sample.baseline_bytes is None:
                return None
            return max(0, sample.peak_bytes - sample.baseline_bytes) / 2**20
    raise ValueError(f"no such metric: {metric}")


@dataclass(frozen=True)
class Interval:
    """A median and between which order statistics the true one lies with the given probability."""

    low: float
    median: float
    high: float
    probability: float
    count: int


def interval_of(values: Sequence[float]) -> Interval:
    """The narrowest pair of order statistics that covers the median with 95 %, exact for any distribution.

    With fewer than six values no pair does: then smallest to largest, with the probability that this has.
    """
    ordered = sorted(values)
    count = len(ordered)
    best = 0
    for cut in range(1, (count + 1) // 2):
        if _coverage(count, cut) >= CONFIDENCE:
            best = cut
    return Interval(
        ordered[best], statistics.median(ordered), ordered[count - 1 - best], _coverage(count, best), count
    )


def _coverage(count: int, cut: int) -> float:
    """Probability that the median lies between the values left when `cut` are cut off at each end."""
    return 1 - 2 * sum(math.comb(count, k) for k in range(cut + 1)) / float(2**count)


@dataclass(frozen=True)
class Check:
    """A figure to reach: of one contender, or of it as a ratio to another one in the same rounds."""

    title: str
    scene: str
    operation: str
    contender: str
    metric: str
    sign: str  # ">=" or "<="
    target: float
    references: tuple[
        str, ...
    ] = ()  # the best of them by median; ("*",): of all others there; none: absolute


@dataclass(frozen=True)
class Verdict:
    """How a check came out. `interval` is None when something it needs was not measured."""

    check: Check
    reference: str
    interval: Interval | None

    @property
    def word(self) -> str:
        """reached: by the median. within spread: by the interval. Else missed, or not measured."""
        if self.interval is None:
            return "not measured"
        if self.interval.probability < CONFIDENCE:
            return "too few rounds"
        least = self.check.sign == ">="
        if self.interval.median >= self.check.target if least else self.interval.median <= self.check.target:
            return "reached"
        if self.interval.high >= self.check.target if least else self.interval.low <= self.check.target:
            return "within spread"
        return "missed"


def by_contender(samples: Iterable[Sample], scene: str, operation: str) -> dict[str, dict[int, Sample]]:
    """Counted samples of a scene and operation: contender, then round."""
    found: dict[str, dict[int, Sample]] = {}
    for sample in samples:
        if (sample.scene, sample.operation) == (scene, operation) and sample.round > 0:
            found.setdefault(sample.contender, {})[sample.round] = sample
    return found


def values_of(rounds: dict[int, Sample], metric: str) -> list[float]:
    """The metric in each round that has it."""
    return [value for sample in rounds.values() if (value := value_of(sample, metric)) is not None]


def judge(check: Check, samples: Iterable[Sample]) -> Verdict:
    """Compares what was measured with the figure to reach."""
    found = by_contender(samples, check.scene, check.operation)
    subject = found.get(check.contender)
    if not subject:
        return Verdict(check, "", None)
    if not check.references:
        values = values_of(subject, check.metric)
        return Verdict(check, "", interval_of(values) if values else None)
    others = [name for name in found if name != check.contender]
    candidates = (
        others if check.references == (ANY_OTHER,) else [name for name in check.references if name in found]
    )
    medians = {n: statistics.median(v) for n in candidates if (v := values_of(found[n], check.metric))}
    if not medians:
        return Verdict(check, "", None)
    pick = max if METRICS[check.metric].more_is_better else min
    reference = pick(medians, key=lambda name: medians[name])
    ratios = []
    for number, sample in subject.items():
        other = found[reference].get(number)
        ours = value_of(sample, check.metric)
        theirs = value_of(other, check.metric) if other else None
        if ours is not None and theirs:
            ratios.append(ours / theirs)
    return Verdict(check, reference, interval_of(ratios) if ratios else None)
