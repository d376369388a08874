"""What was found out, and the tables that show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.measure import number, percentile


@dataclass(frozen=True, slots=True)
class Question:
    """A row: what happens when… ``name`` chooses it on the command line."""

    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one plugin did: figures with their unit, or words, or both.

    ``words`` come first where there are no figures, and behind them where there are.
    """

    samples: tuple[float, ...] = ()
    unit: str = "s"
    words: str = ""

    @property
    def text(self) -> str:
        """The cell: the median and, of several, the worst and how many there are."""
        if not self.samples:
            return self.words or "-"
        text = f"{number(percentile(self.samples, 50))} {self.unit}"
        if len(self.samples) > 1:
            text += f" (worst {number(max(self.samples))}; n={len(self.samples)})"
        return f"{text}; {self.words}" if self.words else text


Cells = Mapping[tuple[str, str], Outcome]
"""By question's name and plugin's title."""


def table(questions: Sequence[Question], plugins: Sequence[str], cells: Cells) -> str:
    """Questions down, plugins across, in Markdown; a cell that was not asked is a dash."""
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
    """One cell of several that were asked the same: all figures, and all words once."""
    samples = tuple(sample for outcome in outcomes for sample in outcome.samples)
    words = "; ".join(dict.fromkeys(outcome.words for outcome in outcomes if outcome.words))
    return Outcome(samples, outcomes[0].unit if outcomes else "s", words)


def ended(code: int | None, said: str) -> str:
    """What became of a process and what it said last; of a long line the end, where Go has the cause."""
    cut = said if len(said) <= 160 else f"…{said[-157:]}"
    fate = "goes on" if code is None else f"exit {code}"
    return f"{fate}: `{cut}`" if cut else fate
