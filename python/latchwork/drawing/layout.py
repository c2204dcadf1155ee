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
#: A node or a bend of an edge: the ID of the node, or the source of the edge and the layer.
Vertex = Hashable

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
class LayeredGraph:
    """A graph whose nodes, and the bends of its edges, are arranged in rows.

    Attributes:
        rows: Nodes and bends of each row, from the top.
        above: For each node and bend, the connected ones in the row above.
        below: For each node and bend, the connected ones in the row below.
        routes: For each edge, its bends from the source on.
    """

    rows: list[list[Vertex]]
    above: dict[Vertex, list[Vertex]] = field(default_factory=dict)
    below: dict[Vertex, list[Vertex]] = field(default_factory=dict)
    routes: dict[tuple[str, str], list[Vertex]] = field(default_factory=dict)


def make_layers(graph: Graph) -> LayeredGraph:
    """Arrange the nodes of a graph in rows, and add a bend wherever an edge passes a row. Takes linear time."""
    depth = compute_depths(graph)
    layers = LayeredGraph([[] for _ in range(max(depth.values(), default=-1) + 1)])
    for node in graph.nodes:
        layers.rows[depth[node.id]].append(node.id)
        layers.above[node.id], layers.below[node.id] = [], []
    bends = 0
    for edge in sorted(graph.edges, key=lambda each: depth[each.target] - depth[each.source]):
        first, last = depth[edge.source], depth[edge.target]
        route: list[Vertex] = [(edge.source, row) for row in range(first + 1, last)]
        new = [bend for bend in route if bend not in layers.above]
        if bends + len(new) > MOST_BENDS:
            layers.routes[edge.source, edge.target] = []
            continue
        bends += len(new)
        for bend in new:
            layers.above[bend], layers.below[bend] = [], []
            layers.rows[bend[1]].append(bend)  # type: ignore[index]
        layers.routes[edge.source, edge.target] = route
        _link(layers, [edge.source, *route, edge.target], new)
    return layers


def _link(layers: LayeredGraph, chain: Sequence[Vertex], new: Sequence[Vertex]) -> None:
    fresh = {*new, chain[-1]}
    for upper, lower in pairwise(chain):
        if lower in fresh:  # the bends before it were linked with an earlier edge
            layers.below[upper].append(lower)
            layers.above[lower].append(upper)


def compute_depths(graph: Graph) -> dict[str, int]:
    """Return the number of each node's row, by node ID; 0 is the top row."""
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


def sort_rows(layers: LayeredGraph) -> None:
    """Sort the nodes and bends in each row so that few edges cross."""
    best = [list(row) for row in layers.rows]
    fewest = count_crossings(layers)
    for sweep in range(_sweeps(layers)):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        rows = range(1, len(layers.rows)) if downwards else range(len(layers.rows) - 2, -1, -1)
        for row in rows:
            _sort_row(layers, row, downwards=downwards)
        count = count_crossings(layers)
        if count < fewest:
            best, fewest = [list(row) for row in layers.rows], count
    layers.rows[:] = best


def _sweeps(layers: LayeredGraph) -> int:
    return _SWEEPS if sum(map(len, layers.rows)) <= _LARGE else _LARGE_SWEEPS


def _sort_row(layers: LayeredGraph, row: int, *, downwards: bool) -> None:
    other = layers.rows[row - 1 if downwards else row + 1]
    near = layers.above if downwards else layers.below
    at = {place: index for index, place in enumerate(other)}
    mean: dict[Vertex, float] = {}
    last = -1.0
    for place in layers.rows[row]:
        beside = [at[each] for each in near[place] if each in at]
        last = mean[place] = sum(beside) / len(beside) if beside else last
    layers.rows[row].sort(key=mean.__getitem__)


def count_crossings(layers: LayeredGraph) -> int:
    """Count the pairs of edges that cross."""
    return sum(_count_row_crossings(layers, row) for row in range(1, len(layers.rows)))


def _count_row_crossings(layers: LayeredGraph, row: int) -> int:
    """Count the pairs of edges that cross between a row and the row above it. Uses a binary indexed tree.

    Args:
        layers: The graph.
        row: Number of the lower row.
    """
    at = {place: index for index, place in enumerate(layers.rows[row - 1])}
    ends = [sorted(at[each] for each in layers.above[place] if each in at) for place in layers.rows[row]]
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
    total = 0
    while index:
        total += tree[index]
        index &= index - 1
    return total


def _add(tree: list[int], index: int) -> None:
    while index < len(tree):
        tree[index] += 1
        index += index & -index


def compute_centers(layers: LayeredGraph, width_of: Callable[[Vertex], float], gap: float) -> dict[Vertex, float]:
    """Compute the x coordinate of the center of each node and of each bend of an edge. The leftmost box begins at 0.

    Args:
        layers: The graph.
        width_of: Returns the width of a node or bend.
        gap: Minimum distance between the boxes of a row.
    """
    x: dict[Vertex, float] = {}
    for row in layers.rows:
        left = 0.0
        for place in row:
            x[place] = left + width_of(place) / 2
            left += width_of(place) + gap
    for sweep in range(2 * _sweeps(layers)):
        near = layers.above if sweep % 2 == 0 else layers.below
        rows = layers.rows if sweep % 2 == 0 else reversed(layers.rows)
        for row in rows:
            _position_row(row, near, x, width_of, gap)
    for row in layers.rows:
        _position_isolated_nodes(row, layers, x, width_of, gap)
    left = min((x[place] - width_of(place) / 2 for row in layers.rows for place in row), default=0.0)
    return {place: at - left for place, at in x.items()}


def _position_row(
    row: Sequence[Vertex],
    near: dict[Vertex, list[Vertex]],
    x: dict[Vertex, float],
    width_of: Callable[[Vertex], float],
    gap: float,
) -> None:
    """Move the nodes and bends of a row as close to the means of their neighbors as their order and distances allow.

    Args:
        row: Nodes and bends of the row, from left to right.
        near: For each node and bend, its neighbors in another row.
        x: Center of each node and bend, which is updated.
        width_of: Returns the width of a node or bend.
        gap: Minimum distance between the boxes of a row.
    """
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (width_of(left) + width_of(right)) / 2 + gap)
    wanted = [
        (sum(x[each] for each in near[place]) / len(near[place]) if near[place] else x[place]) - offset
        for place, offset in zip(row, offsets, strict=True)
    ]
    for place, at, offset in zip(row, fit_nondecreasing(wanted), offsets, strict=True):
        x[place] = at + offset


def _position_isolated_nodes(
    row: Sequence[Vertex], layers: LayeredGraph, x: dict[Vertex, float], width_of: Callable[[Vertex], float], gap: float
) -> None:
    """Move nodes without edges next to their left neighbor in the row.

    Args:
        row: Nodes and bends of the row, from left to right.
        layers: The graph.
        x: Center of each node and bend, which is updated.
        width_of: Returns the width of a node or bend.
        gap: Distance between the boxes.
    """
    for left, place in pairwise(row):
        if not layers.above[place] and not layers.below[place]:
            x[place] = x[left] + (width_of(left) + width_of(place)) / 2 + gap


def fit_nondecreasing(wanted: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence that is closest to the given one, by the sum of squared differences."""
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
class EdgeLine:
    """The line of an edge, from the lower side of its source to the upper side of its target."""

    edge: Edge
    points: tuple[tuple[float, float], ...]

    @property
    def path(self) -> str:
        """The data of the SVG path for the line. Its curves leave and reach each row vertically."""
        (x, y), *rest = self.points
        path = [f"M{format_px(x)} {format_px(y)}"]
        for count, (right, below) in enumerate(rest):
            if count % 2 or right == x:
                path.append(f"L{format_px(right)} {format_px(below)}")
            else:
                half = format_px((y + below) / 2)
                path.append(f"C{format_px(x)} {half} {format_px(right)} {half} {format_px(right)} {format_px(below)}")
            x, y = right, below
        return "".join(path)


def format_px(value: float) -> str:
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
    lines: tuple[EdgeLine, ...] = ()
    width: float = 2 * MARGIN
    height: float = 2 * MARGIN


def lay_out(graph: Graph) -> Layout:
    """Compute a layout in which each node is below all its dependencies.

    The same graph always gets the same layout. Ten thousand nodes take some seconds.
    """
    if not graph.nodes:
        return Layout()
    layers = make_layers(graph)
    sort_rows(layers)
    texts = {node.id: shorten_label(node.text) for node in graph.nodes}
    widths: dict[Vertex, float] = {
        each: max(_LEAST_WIDTH, count_letter_widths(text) * LETTER_WIDTH + 2 * _PADDING) for each, text in texts.items()
    }
    x = compute_centers(layers, lambda place: widths.get(place, _BEND_WIDTH), GAP)
    y = {place: MARGIN + row * (BOX_HEIGHT + ROW_GAP) for row, places in enumerate(layers.rows) for place in places}
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
        EdgeLine(edge, _compute_points(edge, layers.routes[edge.source, edge.target], boxes, x, y))
        for edge in graph.edges
    )
    right = max(x[place] + widths.get(place, _BEND_WIDTH) / 2 for place in x)
    return Layout(boxes, lines, round(right + 2 * MARGIN, 1), max(y.values()) + BOX_HEIGHT + MARGIN)


def _compute_points(
    edge: Edge, route: list[Vertex], boxes: dict[str, Box], x: dict[Vertex, float], y: dict[Vertex, float]
) -> tuple[tuple[float, float], ...]:
    """Return the points through which an edge is drawn. At a bend, the edge passes straight through the row.

    Args:
        edge: The edge.
        route: The bends of the edge.
        boxes: Box of each node, by ID.
        x: Center of each node and bend.
        y: Top of the row of each node and bend.
    """
    source, target = boxes[edge.source], boxes[edge.target]
    points = [(source.x + source.width / 2, source.y + source.height)]
    for bend in route:
        points += [(MARGIN + x[bend], y[bend]), (MARGIN + x[bend], y[bend] + BOX_HEIGHT)]
    points.append((target.x + target.width / 2, target.y))
    return tuple((round(left, 1), round(top, 1)) for left, top in points)


def count_letter_widths(text: str) -> int:
    """Return the width of a text, in letters. Wide characters count as two."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def shorten_label(text: str) -> str:
    """Shorten a text to one line by leaving out its middle, because names often differ at their ends."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    if count_letter_widths(line) <= MOST_LETTERS:
        return line
    head, tail = "", ""
    while count_letter_widths(head) < MOST_LETTERS // 2 - 2:
        head += line[len(head)]
    while count_letter_widths(tail) < MOST_LETTERS // 2 - 2:
        tail = line[-len(tail) - 1] + tail
    return f"{head}{_ELLIPSIS}{tail}"
