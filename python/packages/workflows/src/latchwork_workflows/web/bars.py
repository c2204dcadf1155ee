"""Bars as SVG: Gantt charts, and the shares of states. They scale with the page and need no script or style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from latchwork_workflows.web.pages import clean_value, format_duration

_ROW = 26
_BAR = 16
_HEAD = 24
_NAMES = 190
_WIDTH = 1000
#: A tick this close to the end has its label on the left.
_EDGE = 45
_TICK = Markup(
    '<line class="tick" x1="{0}" x2="{0}" y1="16" y2="{1}"/>'
    '<text class="tick" x="{0}" y="11" text-anchor="{3}">{2}</text>'
)
_STEPS_S = (
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14_400,
    21_600,
    43_200,
    86_400,
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart.

    Attributes:
        start: Seconds since the epoch.
        end: Seconds since the epoch. None: still running.
        kind: The suffix of its class ``state-...``.
        title: The tooltip.
        link: The address of its link.
    """

    start: float
    end: float | None
    kind: str
    title: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class GanttChart:
    """Rows of bars by name, in order."""

    rows: Sequence[tuple[str, Sequence[Bar]]]

    def svg(self, now: float) -> Markup:
        """Draw the chart as SVG.

        Args:
            now: The current time in seconds since the epoch, at which running bars end.
        Returns:
            The SVG, or an empty text if there is no bar.
        """
        bars = [bar for _, row in self.rows for bar in row]
        if not bars:
            return Markup("")
        first = min(bar.start for bar in bars)
        last = max(first + 0.1, *(bar.end if bar.end is not None else now for bar in bars))
        height = _HEAD + _ROW * len(self.rows) + 4
        head = Markup('<svg class="bars" viewBox="0 0 {} {}" role="group" aria-label="{}">').format(
            _WIDTH, height, f"timeline, {format_duration(last - first)} in all"
        )
        parts = [head, *_ticks(first, last, height)]
        for number, (name, row) in enumerate(self.rows):
            top = _HEAD + _ROW * number
            parts.append(
                Markup('<text class="name" x="{}" y="{}">{}</text>').format(_NAMES - 8, top + 13, _shorten(name))
            )
            parts += [_bar(bar, top, first, last, now) for bar in row]
        return Markup("").join([*parts, Markup("</svg>")])


def _bar(bar: Bar, top: int, first: float, last: float, now: float) -> Markup:
    end = bar.end if bar.end is not None else now
    left = _x_position(bar.start, first, last)
    width = max(3.0, _x_position(end, first, last) - left)
    took = format_duration(end - bar.start)
    shape = Markup('<g class="bar state-{}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="3"/></g>')
    made = shape.format(bar.kind, clean_value(f"{bar.title}, {took}"), f"{left:.1f}", top + 1, f"{width:.1f}", _BAR)
    return Markup('<a href="{}">{}</a>').format(bar.link, made) if bar.link else made


def _ticks(first: float, last: float, height: int) -> list[Markup]:
    span = last - first
    step = next((each for each in _STEPS_S if span / each <= 6), 86_400.0 * max(1, round(span / 86_400 / 6)))
    form = "%H:%M:%S" if span < 86_400 else "%m-%d %H:%M"
    found: list[Markup] = []
    at = (int(first / step) + 1) * step if step >= 1 else first
    while at <= last and len(found) < 12:
        place = _x_position(at, first, last)
        x, anchor = f"{place:.1f}", "end" if place > _WIDTH - _EDGE else "middle"
        text = f"{datetime.fromtimestamp(at, UTC):{form}}" if step >= 1 else f"+{at - first:.1f} s"
        found.append(_TICK.format(x, height, text, anchor))
        at += step
    return found


def _x_position(time: float, first: float, last: float) -> float:
    return _NAMES + (time - first) / (last - first) * (_WIDTH - _NAMES - 6)


def _shorten(name: str) -> str:
    text = str(clean_value(name))
    return text if len(text) <= 22 else f"{text[:10]}…{text[-11:]}"


def draw_share_bar(counts: Sequence[tuple[str, int]], title: str) -> Markup:
    """Draw one bar as SVG that shows the share of each state.

    Args:
        counts: The state and the number of its items, from left to right.
        title: The tooltip, also read by screen readers.
    """
    total = sum(count for _, count in counts) or 1
    parts = [
        Markup(
            '<svg class="shares" viewBox="0 0 100 10" preserveAspectRatio="none" role="img"><title>{}</title>'
        ).format(clean_value(title))
    ]
    left = 0.0
    for state, count in counts:
        width = 100.0 * count / total
        shape = Markup('<rect class="bar state-{}" x="{}" y="0" width="{}" height="10"/>')
        parts += [shape.format(state.replace("_", "-"), f"{left:.3f}", f"{width:.3f}")] if count else []
        left += width
    return Markup("").join([*parts, Markup("</svg>")])
