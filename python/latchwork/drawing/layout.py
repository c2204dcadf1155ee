"""Where everything is: boxes of nodes, and lines of edges, in pixels from the top left."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field

from latchwork.drawing.graph import Edge, Graph
from latchwork.drawing.layers import Place, layered
from latchwork.drawing.rows import centres, ordered

MARGIN = 16.0
ROW_GAP = 44.0
GAP = 20.0
BOX_HEIGHT = 32.0
#: Of text in a box; wide characters take two.
LETTER_WIDTH = 7.4
MOST_LETTERS = 32
_LEAST_WIDTH = 48.0
_PADDING = 12.0
_BEND_WIDTH = 6.0
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Box:
    """A node's box: its left upper corner and its size, and the text that fits into it."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """An edge's line: from the lower side of its source to the upper side of its target, each point below the last."""

    edge: Edge
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Layout:
    """A graph with places.

    Attributes:
        boxes: by the ids of nodes, in the order of the graph; they do not overlap.
        lines: one for each edge, in the order of the graph.
        width, height: of all, margins included.
    """

    boxes: dict[str, Box] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    width: float = 2 * MARGIN
    height: float = 2 * MARGIN


def lay_out(graph: Graph) -> Layout:
    """Place the nodes in layers, each below all that lead to it. The same graph has the same layout.

    Takes some seconds for ten thousand nodes.
    """
    if not graph.nodes:
        return Layout()
    found = layered(graph)
    ordered(found)
    texts = {node.id: fitted(node.text) for node in graph.nodes}
    widths: dict[Place, float] = {
        each: max(_LEAST_WIDTH, letters(text) * LETTER_WIDTH + 2 * _PADDING) for each, text in texts.items()
    }
    x = centres(found, lambda place: widths.get(place, _BEND_WIDTH), GAP)
    y = {place: MARGIN + row * (BOX_HEIGHT + ROW_GAP) for row, places in enumerate(found.rows) for place in places}
    boxes = {
        node.id: Box(
            round(MARGIN + x[node.id] - widths[node.id] / 2, 1),
            y[node.id],
            round(widths[node.id], 1),
            BOX_HEIGHT,
            texts[node.id],
        )
        for node in graph.nodes
    }
    lines = tuple(
        Line(edge, _points(edge, found.routes[edge.source, edge.target], boxes, x, y)) for edge in graph.edges
    )
    right = max(x[place] + widths.get(place, _BEND_WIDTH) / 2 for place in x)
    return Layout(boxes, lines, round(right + 2 * MARGIN, 1), max(y.values()) + BOX_HEIGHT + MARGIN)


def _points(
    edge: Edge, route: list[Place], boxes: dict[str, Box], x: dict[Place, float], y: dict[Place, float]
) -> tuple[tuple[float, float], ...]:
    """A bend goes straight through its row, from where boxes begin to where they end."""
    source, target = boxes[edge.source], boxes[edge.target]
    points = [(source.x + source.width / 2, source.y + source.height)]
    for bend in route:
        points += [(MARGIN + x[bend], y[bend]), (MARGIN + x[bend], y[bend] + BOX_HEIGHT)]
    points.append((target.x + target.width / 2, target.y))
    return tuple((round(left, 1), round(top, 1)) for left, top in points)


def letters(text: str) -> int:
    """How many letters wide a text is."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def fitted(text: str) -> str:
    """A text as one line that is not too wide: its middle is left out, since names often differ at their ends."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    if letters(line) <= MOST_LETTERS:
        return line
    head, tail = "", ""
    while letters(head) < MOST_LETTERS // 2 - 2:
        head += line[len(head)]
    while letters(tail) < MOST_LETTERS // 2 - 2:
        tail = line[-len(tail) - 1] + tail
    return f"{head}{_ELLIPSIS}{tail}"
