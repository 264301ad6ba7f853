"""Draw detection curves as an SVG picture, readable on light and dark pages.

    python tests/honesty/plot.py CURVE.json [MORE.json ...] [--out FILE.svg]

The files are those of ``curve.py --json``. One line a model, pass and device: the share of
runs that fail against the size of the change; dashed, the limit of detection that the reports
state.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["draw", "main"]

OUT = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "detection-curve.svg"
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 78, 20, 20, 60
LINE = 18  # of the legend
LEAST, MOST = -7, 0  # powers of ten of the change

# Of middle lightness, so that each stands out from white and from black.
COLOURS = ("#2f7fd0", "#d0592f", "#2f9a4f", "#a35fd0", "#b08000", "#c0407f")
STYLE = """
  text { font: 13px sans-serif; fill: #333 }
  .frame { fill: none; stroke: #888 } .grid { stroke: #8884 }
  .curve { fill: none; stroke-width: 2 } .limit { stroke-width: 1.5; stroke-dasharray: 6 4 }
  @media (prefers-color-scheme: dark) { text { fill: #ddd } }
"""


def x_of(change: float) -> float:
    """Return where a change stands; c = 0 has no place on a log axis."""
    power = min(max(math.log10(change), LEAST), MOST)
    return LEFT + (power - LEAST) / (MOST - LEAST) * (WIDTH - LEFT - RIGHT)


def y_of(share: float) -> float:
    """Return where a share stands."""
    return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def draw(curves: Sequence[dict[str, Any]]) -> str:
    """Return the picture."""
    height = HEIGHT + LINE * len(curves) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Share of runs that fail against the size of a change</title>",
        f"<style>{STYLE}</style>",
        *_axes(),
    ]
    for number, curve in enumerate(curves):
        parts += _curve(curve, number)
    return "\n".join([*parts, "</svg>", ""])


def _axes() -> Iterator[str]:
    bottom, right = y_of(0), WIDTH - RIGHT
    for power in range(LEAST, MOST + 1):
        x = x_of(10.0**power)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom:.1f}"/>'
        label = f"1e{power}" if power else "1"
        yield _text(x, bottom + 18, label, anchor="middle")
    for quarter in range(5):
        y = y_of(quarter / 4)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, f"{25 * quarter} %", anchor="end")
    box = f'width="{right - LEFT}" height="{bottom - TOP:.1f}"'
    yield f'<rect class="frame" x="{LEFT}" y="{TOP}" {box}/>'
    told = "change of one layer's attention scale, as a fraction (dashed: the stated limit)"
    yield _text((LEFT + right) / 2, bottom + 40, told, anchor="middle")
    side = _text(0, 0, "share of runs that fail", anchor="middle")
    yield f'<g transform="translate(18 {y_of(0.5):.1f}) rotate(-90)">{side}</g>'


def _curve(curve: dict[str, Any], number: int) -> Iterator[str]:
    colour = COLOURS[number % len(COLOURS)]
    points = [(c, failed / runs) for c, failed, runs in curve["points"] if c]
    path = " ".join(f"{x_of(c):.1f},{y_of(share):.1f}" for c, share in points)
    yield f'<polyline class="curve" stroke="{colour}" points="{path}"/>'
    for c, share in points:
        yield f'<circle cx="{x_of(c):.1f}" cy="{y_of(share):.1f}" r="3" fill="{colour}"/>'
    name = f"{curve['model']}, {curve['precision']} pass, {curve['device']}"
    if curve["limit"]:
        x = x_of(curve["limit"])
        ends = f'x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{y_of(0):.1f}"'
        yield f'<line class="limit" stroke="{colour}" {ends}/>'
        name += f"; stated limit {100 * curve['limit']:.2g} %"
    if curve["half"]:
        name += f", half are seen at {100 * curve['half']:.2g} %"
    zeros = [(failed, runs) for c, failed, runs in curve["points"] if not c]
    name += "".join(f"; {failed} of {runs} fail at 0" for failed, runs in zeros)
    y = HEIGHT + LINE * number
    ends = f'x1="{LEFT}" y1="{y}" x2="{LEFT + 24}" y2="{y}"'
    yield f'<line class="curve" stroke="{colour}" {ends}/>'
    yield _text(LEFT + 32, y + 4, name)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what the files hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(argv)
    curves = [
        curve
        for file in options.files
        for curve in json.loads(file.read_text(encoding="utf-8"))["curves"]
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(draw(curves), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
