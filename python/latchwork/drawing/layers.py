"""In which layer each node is, and the bends of edges that pass layers. Not exported.

A node is below all it depends on, and as near to what depends on it as that allows. An edge over several layers bends
in each of them; edges of one source share their bends, so that a source costs one bend in a layer however many targets
it has. Past a bound edges are drawn straight: a picture of that many crossing lines says nothing anyway.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from latchwork.drawing.graph import Graph

MOST_BENDS = 20_000

#: A node is its id, a bend is its source and layer.
Place = Hashable


@dataclass
class Layered:
    """A graph in layers.

    Attributes:
        rows: what is in each layer, nodes and bends, from the top.
        above: of each place those in the row before that it hangs on.
        below: the same the other way round.
        routes: of each edge the bends it goes through, from its source.
    """

    rows: list[list[Place]]
    above: dict[Place, list[Place]] = field(default_factory=dict)
    below: dict[Place, list[Place]] = field(default_factory=dict)
    routes: dict[tuple[str, str], list[Place]] = field(default_factory=dict)


def layered(graph: Graph) -> Layered:
    """Nodes in rows, with bends. Linear in nodes, edges and bends."""
    depth = depths(graph)
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


def depths(graph: Graph) -> dict[str, int]:
    """The layer of each node, 0 at the top."""
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
