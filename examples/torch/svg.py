"""Line plots as SVG, by hand: no package is needed, and the files are small and alike wherever they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import log
from pathlib import Path

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 28, 40, 44
COLORS = ("#1f6fb4", "#d1622b", "#3a8f4a", "#8a4fa3", "#777777")


@dataclass(frozen=True)
class Line:
    """A curve; with ``low`` and ``high``, of the same length, a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False


@dataclass
class Plot:
    title: str
    x_label: str
    y_label: str
    lines: list[Line] = field(default_factory=list)
    log_x: bool = False

    def write(self, path: Path) -> None:
        marks = [self._frame(), *self._bands(), *(self._curve(i) for i in range(len(self.lines))), *self._names()]
        box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
        path.write_text("\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *marks, "</svg>"]) + "\n")

    def _range(self, axis: str) -> tuple[float, float]:
        values = [v for line in self.lines for v in getattr(line, axis)]
        if axis == "y":
            values += [v for line in self.lines for v in (*line.low, *line.high)]
        return min(values), max(values)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        (x0, x1), (y0, y1) = self._range("x"), self._range("y")
        across = (x - x0) / (x1 - x0)
        if self.log_x:
            across = log(x / x0) / log(x1 / x0)
        up = (y - y0) / (y1 - y0)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def _path(self, x: Sequence[float], y: Sequence[float]) -> str:
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in map(self._at, x, y))

    def _curve(self, i: int) -> str:
        line = self.lines[i]
        return f'<polyline fill="none" {self._stroke(i)} points="{self._path(line.x, line.y)}"/>'

    def _stroke(self, i: int) -> str:
        # Dashes of lines that coincide lie beside each other.
        dash = f' stroke-dasharray="6 12" stroke-dashoffset="{9 * i}"' if self.lines[i].dashed else ""
        return f'stroke="{COLORS[i]}" stroke-width="2"{dash}'

    def _bands(self) -> list[str]:
        out = []
        for line, color in zip(self.lines, COLORS):
            if line.low:
                outline = self._path([*line.x, *line.x[::-1]], [*line.high, *line.low[::-1]])
                out.append(f'<polygon fill="{color}" fill-opacity="0.15" points="{outline}"/>')
        return out

    def _frame(self) -> str:
        middle = (LEFT + WIDTH - RIGHT) / 2
        out = [
            f'<text x="{middle}" y="22" text-anchor="middle" font-size="14">{escape(self.title)}</text>',
            f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(self.x_label)}</text>',
            f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y_label)}</text>",
        ]
        (x0, x1), (y0, y1) = self._range("x"), self._range("y")
        for tick in _ticks(y0, y1):
            _, y = self._at(x0, tick)
            out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
        for tick in sorted({x for line in self.lines for x in line.x}) if self.log_x else _ticks(x0, x1):
            x, _ = self._at(tick, y0)
            out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>')
        out.append(
            f'<path d="M{LEFT},{TOP} V{HEIGHT - BOTTOM} H{WIDTH - RIGHT}" fill="none" stroke="black" stroke-width="1"/>'
        )
        return "\n".join(out)

    def _names(self) -> list[str]:
        out = []
        for i, line in enumerate(self.lines):
            y = TOP + 12 + 18 * i
            out.append(f'<line x1="{WIDTH - 276}" x2="{WIDTH - 246}" y1="{y}" y2="{y}" {self._stroke(i)}/>')
            out.append(f'<text x="{WIDTH - 240}" y="{y + 4}">{escape(line.name)}</text>')
        return out


def _ticks(low: float, high: float) -> list[float]:
    """Some five round numbers."""
    steps = (base * 10.0**power for power in range(-3, 6) for base in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= 7)
    return [round(i * step, 10) for i in range(int(-(-low // step)), int(high // step) + 1)]
