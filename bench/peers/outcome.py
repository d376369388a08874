"""Results and their tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.measure import number, percentile


@dataclass(frozen=True, slots=True)
class Question:
    """A row: what happens when… ``name`` selects it on the command line."""

    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a plugin: samples with their unit, words, or both.

    ``words`` follow the samples, if there are any.
    """

    samples: tuple[float, ...] = ()
    unit: str = "s"
    words: str = ""

    @property
    def text(self) -> str:
        """The cell: the median and, for several samples, the worst and their number."""
        if not self.samples:
            return self.words or "-"
        text = f"{number(percentile(self.samples, 50))} {self.unit}"
        if len(self.samples) > 1:
            text += f" (worst {number(max(self.samples))}; n={len(self.samples)})"
        return f"{text}; {self.words}" if self.words else text


Cells = Mapping[tuple[str, str], Outcome]
"""By question's name and plugin's title."""


def table(questions: Sequence[Question], plugins: Sequence[str], cells: Cells) -> str:
    """A Markdown table with a row per question and a column per plugin; a missing result is a dash."""
    rows = [["", *plugins]]
    for question in questions:
        row = [
            cells[question.name, plugin].text if (question.name, plugin) in cells else "-"
            for plugin in plugins
        ]
        rows.append([question.title, *(cell.replace("|", "\\|") for cell in row)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * (1 + len(plugins)), *lines[1:]])


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Merges results for the same question: all samples, and all different words."""
    samples = tuple(sample for outcome in outcomes for sample in outcome.samples)
    words = "; ".join(dict.fromkeys(outcome.words for outcome in outcomes if outcome.words))
    return Outcome(samples, outcomes[0].unit if outcomes else "s", words)


def ended(code: int | None, said: str) -> str:
    """How a process ended, and its last message; of a long line the end, where Go prints the cause."""
    cut = said if len(said) <= 160 else f"…{said[-157:]}"
    fate = "keeps running" if code is None else f"exit {code}"
    return f"{fate}: `{cut}`" if cut else fate
