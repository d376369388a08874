"""Measures with names, units and limits, and the evaluation of samples. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Statistic(StrEnum):
    """A statistic of samples."""

    P50 = "p50"
    P99 = "p99"
    MAX = "max"


_RANK = {Statistic.P50: 50.0, Statistic.P99: 99.0, Statistic.MAX: 100.0}


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least ``percent`` of all samples do not exceed (nearest rank).

    Raises:
        ValueError: there are no samples, or ``percent`` is not above 0 and at most 100.
    """
    if not samples or not 0 < percent <= 100:
        raise ValueError("a percentile needs samples and a percentage above 0 and at most 100")
    return sorted(samples)[math.ceil(percent / 100 * len(samples)) - 1]


@dataclass(frozen=True, slots=True)
class Measure:
    """A line of the table: a target if it has ``limits``, else for information.

    ``limits`` are inclusive and in ``unit``. ``shown`` are the statistics in the table.
    """

    name: str
    title: str
    unit: str
    limits: Mapping[Statistic, float] = field(default_factory=dict)
    shown: tuple[Statistic, ...] = (Statistic.P50, Statistic.P99, Statistic.MAX)

    @property
    def target(self) -> str:
        """The target as text; empty if there is none."""
        if self.shown == (Statistic.MAX,):
            return "".join(f"≤ {limit:g} {self.unit}" for limit in self.limits.values())
        return ", ".join(f"{name} ≤ {limit:g} {self.unit}" for name, limit in self.limits.items())


@dataclass(frozen=True, slots=True)
class Result:
    """The samples of a measure, in its unit.

    ``wrong`` is an error in the results, independent of the samples; ``skipped`` is why there are none;
    ``note`` describes the method, if there are several.
    """

    measure: Measure
    samples: tuple[float, ...] = ()
    note: str = ""
    wrong: str = ""
    skipped: str = ""

    def value(self, statistic: Statistic) -> float:
        """One statistic of the samples."""
        return percentile(self.samples, _RANK[statistic])

    @property
    def missed(self) -> bool:
        """Whether a target was missed."""
        if self.skipped:
            return False
        return bool(self.wrong) or any(
            self.value(statistic) > limit for statistic, limit in self.measure.limits.items()
        )

    @property
    def verdict(self) -> str:
        """``met``, ``MISSED`` or ``skipped`` with the reason; a dash for a measure without a limit."""
        if self.skipped:
            return f"skipped: {self.skipped}"
        if self.missed:
            return f"MISSED: {self.wrong}" if self.wrong else "MISSED"
        return "met" if self.measure.limits else "-"

    @property
    def text(self) -> str:
        """The results in the format of the table."""
        if not self.samples:
            return ""
        if self.measure.shown == (Statistic.MAX,) and len(self.samples) == 1:
            text = f"{number(self.samples[0])} {self.measure.unit}"
        else:
            figures = ", ".join(f"{name} {number(self.value(name))}" for name in self.measure.shown)
            text = f"{figures} {self.measure.unit}; n={len(self.samples)}"
        return f"{text}; {self.note}" if self.note else text


def number(value: float) -> str:
    """Three significant digits, never in scientific notation."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"
