"""Draws series as small charts with logarithmic axes, in one SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

WIDTH, HEIGHT, MARGIN = 400, 220, 48
STYLE = (
    "text{font:12px sans-serif;fill:#57606a}.line{fill:none;stroke:#0969da;stroke-width:2}"
    ".dot{fill:#0969da}.axis{stroke:#8b949e}"
)


@dataclass(slots=True)
class Series:
    """Values above 0 by size; ``title`` is what grows, ``unit`` that of the values."""

    title: str
    unit: str
    points: list[tuple[float, float]] = field(default_factory=list)


def draw(every: Sequence[Series]) -> str:
    """The SVG, two charts in a row."""
    rows = (len(every) + 1) // 2
    parts = [part for n, one in enumerate(every) for part in _chart(one, n % 2 * WIDTH, n // 2 * HEIGHT)]
    size = f'width="{2 * WIDTH}" height="{rows * HEIGHT}" viewBox="0 0 {2 * WIDTH} {rows * HEIGHT}"'
    words = "; ".join(f"{one.unit} by {one.title}" for one in every)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{words}">'
    head += f"<style>{STYLE}</style>"
    return "\n".join([head, *parts, "</svg>", ""])


def _chart(one: Series, left: float, top: float) -> Iterator[str]:
    sizes, values = [x for x, _ in one.points], [y for _, y in one.points]
    low, high = _decade(min(values), math.floor), _decade(max(values), math.ceil)

    def place(size: float, value: float) -> tuple[float, float]:
        across = _share(size, min(sizes), max(sizes))
        up = _share(value, low, max(high, 10 * low))
        return (
            left + MARGIN + across * (WIDTH - 1.5 * MARGIN),
            top + HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN),
        )

    (x, y), (end, _) = place(min(sizes), low), place(max(sizes), low)
    peak = place(min(sizes), max(high, 10 * low))[1]
    yield f'<path class="axis" fill="none" d="M{x:.0f},{peak:.0f}V{y:.0f}H{end:.0f}"/>'
    yield f'<text x="{left + MARGIN:.0f}" y="{top + 24:.0f}">{one.unit}, by {one.title}</text>'
    for value, at in ((low, y), (max(high, 10 * low), peak)):
        yield f'<text x="{x - 6:.0f}" y="{at + 4:.0f}" text-anchor="end">{value:g}</text>'
    places = [place(*point) for point in one.points]
    yield f'<polyline class="line" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in places)}"/>'
    for (size, value), (a, b) in zip(one.points, places, strict=True):
        tip = f"<title>{size:g}: {value:.3g}</title>"
        yield f'<circle class="dot" cx="{a:.1f}" cy="{b:.1f}" r="3">{tip}</circle>'
        short = f"{size / 1000:g}k" if size >= 1000 else f"{size:g}"
        yield f'<text x="{a:.0f}" y="{y + 18:.0f}" text-anchor="middle">{short}</text>'
        yield f'<text x="{a:.0f}" y="{b - 8:.0f}" text-anchor="middle">{value:.3g}</text>'


def _decade(value: float, rounded: Callable[[float], int]) -> float:
    return 10.0 ** rounded(math.log10(value))


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low) if high > low else 0.5
