"""The layout of a graph: boxes of nodes and lines of edges, in pixels from the top left.

Layers: a node is below all of its dependencies, and as near to its successors as that allows. An edge over several
layers bends in each of them. Edges of one source share their bends, so that a source costs one bend per layer, however
many targets it has. Beyond a limit edges are drawn straight, because so many crossing lines are unreadable anyway.

Order: places move to the mean of their neighbors, row by row, down and up, and the arrangement with the fewest
crossings is kept. Position: each row is moved as near to its neighbors as its order and the least distances allow,
which is a regression with a known exact solution (pool adjacent violators). Ties keep the order of the graph, so that a
graph that grows at its end changes its drawing little.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from latchwork.drawing.graph import Edge, Graph

MOST_BENDS = 20_000
#: A node is its id, a bend is its source and layer.
Place = Hashable

_SWEEPS = 8
#: Pictures with more places than this are swept less often.
_LARGE = 4_000
_LARGE_SWEEPS = 2

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


@dataclass
class Layered:
    """A graph in layers.

    Attributes:
        rows: Nodes and bends of each layer, from the top.
        above: For each place, the connected places in the row above.
        below: For each place, the connected places in the row below.
        routes: For each edge, its bends from the source on.
    """

    rows: list[list[Place]]
    above: dict[Place, list[Place]] = field(default_factory=dict)
    below: dict[Place, list[Place]] = field(default_factory=dict)
    routes: dict[tuple[str, str], list[Place]] = field(default_factory=dict)


def make_layers(graph: Graph) -> Layered:
    """Arrange the nodes of a graph in rows, and add bends where an edge passes a row. Takes linear time."""
    depth = compute_depths(graph)
    found = Layered([[] for _ in range(max(depth.values(), default=-1) + 1)])
    for node in graph.nodes:
        found.rows[depth[node.id]].append(node.id)
        found.above[node.id], found.below[node.id] = [], []
    bends = 0
    for edge in sorted(graph.edges, key=lambda each: depth[each.target] - depth[each.source]):
        first, last = depth[edge.source], depth[edge.target]
        route: list[Place] = [(edge.source, row) for row in range(first + 1, last)]
        new = [bend for bend in route if bend not in found.above]
        if bends + len(new) > MOST_BENDS:
            found.routes[edge.source, edge.target] = []
            continue
        bends += len(new)
        for bend in new:
            found.above[bend], found.below[bend] = [], []
            found.rows[bend[1]].append(bend)  # type: ignore[index]
        found.routes[edge.source, edge.target] = route
        _link(found, [edge.source, *route, edge.target], new)
    return found


def _link(found: Layered, chain: Sequence[Place], new: Sequence[Place]) -> None:
    fresh = {*new, chain[-1]}
    for upper, lower in pairwise(chain):
        if lower in fresh:  # the bends before it were linked with an earlier edge
            found.below[upper].append(lower)
            found.above[lower].append(upper)


def compute_depths(graph: Graph) -> dict[str, int]:
    """Return the number of each node's row, 0 for the top."""
    depth = dict.fromkeys(graph.order, 0)
    below: dict[str, list[str]] = {each: [] for each in graph.order}
    above: dict[str, list[str]] = {each: [] for each in graph.order}
    for edge in graph.edges:
        below[edge.source].append(edge.target)
        above[edge.target].append(edge.source)
    for each in graph.order:
        for target in below[each]:
            depth[target] = max(depth[target], depth[each] + 1)
    for each in reversed(graph.order):  # what hangs on nothing comes down to what hangs on it
        if below[each] and len(below[each]) > len(above[each]) and not above[each]:
            depth[each] = min(depth[target] for target in below[each]) - 1
    return depth


def sort_rows(found: Layered) -> None:
    """Sort the nodes in each row so that few edges cross."""
    best = [list(row) for row in found.rows]
    fewest = count_crossings(found)
    for sweep in range(_sweeps(found)):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        rows = range(1, len(found.rows)) if downwards else range(len(found.rows) - 2, -1, -1)
        for row in rows:
            _sort_row(found, row, downwards=downwards)
        count = count_crossings(found)
        if count < fewest:
            best, fewest = [list(row) for row in found.rows], count
    found.rows[:] = best


def _sweeps(found: Layered) -> int:
    return _SWEEPS if sum(map(len, found.rows)) <= _LARGE else _LARGE_SWEEPS


def _sort_row(found: Layered, row: int, *, downwards: bool) -> None:
    other = found.rows[row - 1 if downwards else row + 1]
    near = found.above if downwards else found.below
    at = {place: index for index, place in enumerate(other)}
    mean: dict[Place, float] = {}
    last = -1.0
    for place in found.rows[row]:
        beside = [at[each] for each in near[place] if each in at]
        last = mean[place] = sum(beside) / len(beside) if beside else last
    found.rows[row].sort(key=mean.__getitem__)


def count_crossings(found: Layered) -> int:
    """Return how many pairs of edges cross."""
    return sum(_count_row_crossings(found, row) for row in range(1, len(found.rows)))


def _count_row_crossings(found: Layered, row: int) -> int:
    """Return how many pairs of edges cross between a row and the next one. Uses a binary indexed tree."""
    at = {place: index for index, place in enumerate(found.rows[row - 1])}
    ends = [sorted(at[each] for each in found.above[place] if each in at) for place in found.rows[row]]
    tree = [0] * (len(at) + 1)
    count = seen = 0
    for group in ends:
        for end in group:
            count += seen - _sum(tree, end + 1)
        for end in group:
            _add(tree, end + 1)
        seen += len(group)
    return count


def _sum(tree: Sequence[int], index: int) -> int:
    found = 0
    while index:
        found += tree[index]
        index &= index - 1
    return found


def _add(tree: list[int], index: int) -> None:
    while index < len(tree):
        tree[index] += 1
        index += index & -index


def compute_centers(found: Layered, width_of: Callable[[Place], float], gap: float) -> dict[Place, float]:
    """Return the horizontal center of each node and bend. The leftmost box begins at 0."""
    x: dict[Place, float] = {}
    for row in found.rows:
        left = 0.0
        for place in row:
            x[place] = left + width_of(place) / 2
            left += width_of(place) + gap
    for sweep in range(2 * _sweeps(found)):
        near = found.above if sweep % 2 == 0 else found.below
        rows = found.rows if sweep % 2 == 0 else reversed(found.rows)
        for row in rows:
            _place_row(row, near, x, width_of, gap)
    for row in found.rows:
        _draw_near(row, found, x, width_of, gap)
    left = min((x[place] - width_of(place) / 2 for row in found.rows for place in row), default=0.0)
    return {place: at - left for place, at in x.items()}


def _place_row(
    row: Sequence[Place],
    near: dict[Place, list[Place]],
    x: dict[Place, float],
    width_of: Callable[[Place], float],
    gap: float,
) -> None:
    """Place the nodes of a row as close to the means of their neighbors as order and minimum distances allow."""
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (width_of(left) + width_of(right)) / 2 + gap)
    wanted = [
        (sum(x[each] for each in near[place]) / len(near[place]) if near[place] else x[place]) - offset
        for place, offset in zip(row, offsets, strict=True)
    ]
    for place, at, offset in zip(row, fit_nondecreasing(wanted), offsets, strict=True):
        x[place] = at + offset


def _draw_near(
    row: Sequence[Place], found: Layered, x: dict[Place, float], width_of: Callable[[Place], float], gap: float
) -> None:
    """Move nodes without neighbors next to their left neighbor in the row."""
    for left, place in pairwise(row):
        if not found.above[place] and not found.below[place]:
            x[place] = x[left] + (width_of(left) + width_of(place)) / 2 + gap


def fit_nondecreasing(wanted: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence that is closest to the given one by least squares."""
    blocks: list[tuple[float, int]] = []
    for value in wanted:
        mean, size = value, 1
        while blocks and blocks[-1][0] >= mean:
            other, count = blocks.pop()
            mean = (mean * size + other * count) / (size + count)
            size += count
        blocks.append((mean, size))
    return [mean for mean, size in blocks for _ in range(size)]


@dataclass(frozen=True, slots=True)
class Box:
    """The box of a node: its upper left corner, its size, and the text that fits into it."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """The line of an edge, from the lower side of its source to the upper side of its target."""

    edge: Edge
    points: tuple[tuple[float, float], ...]

    @property
    def path(self) -> str:
        """Return the data of the SVG path for the line. Its curves leave and reach each row vertically."""
        (x, y), *rest = self.points
        path = [f"M{px_text(x)} {px_text(y)}"]
        for count, (right, below) in enumerate(rest):
            if count % 2 or right == x:
                path.append(f"L{px_text(right)} {px_text(below)}")
            else:
                half = px_text((y + below) / 2)
                path.append(f"C{px_text(x)} {half} {px_text(right)} {half} {px_text(right)} {px_text(below)}")
            x, y = right, below
        return "".join(path)


def px_text(value: float) -> str:
    """Format a length in pixels with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Layout:
    """A graph with positions.

    Attributes:
        boxes: Boxes by node ID, in the order of the graph, without overlaps.
        lines: One line per edge, in the order of the graph.
        width, height: Size of the drawing, including margins.
    """

    boxes: dict[str, Box] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    width: float = 2 * MARGIN
    height: float = 2 * MARGIN


def lay_out(graph: Graph) -> Layout:
    """Compute a layout in which each node is below all its dependencies. The same graph always gets the same layout.

    Takes some seconds for ten thousand nodes.
    """
    if not graph.nodes:
        return Layout()
    found = make_layers(graph)
    sort_rows(found)
    texts = {node.id: shorten_label(node.text) for node in graph.nodes}
    widths: dict[Place, float] = {
        each: max(_LEAST_WIDTH, text_width(text) * LETTER_WIDTH + 2 * _PADDING) for each, text in texts.items()
    }
    x = compute_centers(found, lambda place: widths.get(place, _BEND_WIDTH), GAP)
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
    """Return the points through which an edge is drawn. A bend passes straight through its row."""
    source, target = boxes[edge.source], boxes[edge.target]
    points = [(source.x + source.width / 2, source.y + source.height)]
    for bend in route:
        points += [(MARGIN + x[bend], y[bend]), (MARGIN + x[bend], y[bend] + BOX_HEIGHT)]
    points.append((target.x + target.width / 2, target.y))
    return tuple((round(left, 1), round(top, 1)) for left, top in points)


def text_width(text: str) -> int:
    """Return the width of a text in letters."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def shorten_label(text: str) -> str:
    """Shorten a text to one line by leaving out its middle, because names often differ at their ends."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    if text_width(line) <= MOST_LETTERS:
        return line
    head, tail = "", ""
    while text_width(head) < MOST_LETTERS // 2 - 2:
        head += line[len(head)]
    while text_width(tail) < MOST_LETTERS // 2 - 2:
        tail = line[-len(tail) - 1] + tail
    return f"{head}{_ELLIPSIS}{tail}"
