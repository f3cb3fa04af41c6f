"""The ladder as a picture: a row a rung, its seconds on a logarithmic scale beside its memory. Pure; answers SVG."""

import math
from collections.abc import Callable, Sequence
from typing import Any
from xml.sax.saxutils import escape

from surf2vec.tasks.report.plots import nice_ticks

ROW, BAR, TOP, BOTTOM = 26, 16, 48, 30
NAMES, PANEL, GAP, EDGE = 220, 260, 60, 50
WIDTH = NAMES + 2 * PANEL + GAP + EDGE
STYLE = (
    "text{font:13px sans-serif;fill:#222}.t{font-weight:bold}.n{text-anchor:end}.x{text-anchor:middle;fill:#666}"
    ".s{fill:#3b6ea8}.m{fill:#c27b38}.g{stroke:#ddd}"
)


def draw_ladder(cases: Sequence[dict[str, Any]]) -> str:
    """An SVG of the cases of `tests.benchmarks.ladder`, in their order."""
    height = TOP + ROW * len(cases) + BOTTOM
    seconds, megabytes = ([case[name] for case in cases] for name in ("seconds", "peak MB"))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f'<style>{STYLE}</style><rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for row, case in enumerate(cases):
        parts.append(f'<text class="n" x="{NAMES - 10}" y="{middle(row) + 5:g}">{escape(case["case"])}</text>')
    powers = range(math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds))) + 1)
    low, high = powers[0], max(powers[-1], powers[0] + 1)
    labels = [f"{'> ' if case['stopped'] else ''}{case['seconds']:.3g}" for case in cases]
    parts += draw_panel(
        NAMES, "seconds (logarithmic)", "s", [10.0**power for power in powers],
        list(zip(seconds, labels, strict=True)), lambda value: (math.log10(value) - low) / (high - low),
    )  # fmt: skip
    ticks = nice_ticks(0, max(megabytes), 4)
    parts += draw_panel(
        NAMES + PANEL + GAP, "memory, MB", "m", ticks,
        [(value, f"{value:,.0f}") for value in megabytes], lambda value: value / ticks[-1],
    )  # fmt: skip
    return "\n".join([*parts, "</svg>", ""])


def draw_panel(
    left: float, title: str, style: str, ticks: Sequence[float], bars: Sequence[tuple[float, str]],
    place: Callable[[float], float],
) -> list[str]:  # fmt: skip
    """A bar with its label a row; place: where in the panel a value stands, 0 to 1."""
    bottom = TOP + ROW * len(bars)
    parts = [f'<text class="t" x="{left}" y="20">{title}</text>']
    for tick in ticks:
        x = left + PANEL * place(tick)
        parts.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}"/>')
        parts.append(f'<text class="x" x="{x:.1f}" y="{bottom + 18}">{tick:,g}</text>')
    for row, (value, label) in enumerate(bars):
        width = max(1.0, PANEL * place(value))
        y = middle(row) - BAR / 2
        parts.append(f'<rect class="{style}" x="{left}" y="{y:g}" width="{width:.1f}" height="{BAR}"/>')
        parts.append(f'<text x="{left + width + 5:.1f}" y="{middle(row) + 5:g}">{escape(label)}</text>')
    return parts


def middle(row: int) -> float:
    """The middle of a row, downwards."""
    return TOP + ROW * (row + 0.5)
