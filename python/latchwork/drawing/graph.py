"""Acyclic graphs to draw: nodes with a label and a kind, and edges between them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from latchwork.errors import LatchworkError

_KIND = re.compile(r"[a-z][a-z0-9-]{0,30}")


class CyclicGraph(LatchworkError, ValueError):
    """A graph to be drawn in layers has a cycle; the message names its nodes."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node of a graph to draw.

    Attributes:
        id: Unique ID in its graph.
        label: Text in its box; the ID if empty.
        kind: CSS class (``kind-...``) and Mermaid class: lower-case letters, digits and ``-``.
        title: Tooltip and text for screen readers; the label if empty.
    """

    id: str
    label: str = ""
    kind: str = ""
    title: str = ""

    @property
    def text(self) -> str:
        """The text that is drawn in the node's box."""
        return self.label or self.id


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge, drawn downwards from its source to its target. ``kind`` as for nodes."""

    source: str
    target: str
    kind: str = ""


@dataclass(frozen=True)
class Graph:
    """Nodes and edges. Their order determines the drawing where nothing else does.

    Attributes:
        nodes: Any number of nodes.
        edges: Edges between two of the nodes; a repeated edge is drawn once.
        title: Title of the drawing.
    Raises:
        CyclicGraph: The edges contain a cycle.
        ValueError: An ID occurs twice, an edge ends at an unknown node, or a kind is not a valid CSS class.
    """

    nodes: tuple[GraphNode, ...]
    edges: tuple[Edge, ...] = ()
    title: str = ""
    order: tuple[str, ...] = field(init=False, repr=False)

    def __init__(self, nodes: Iterable[GraphNode], edges: Iterable[Edge] = (), title: str = "") -> None:
        object.__setattr__(self, "nodes", tuple(nodes))
        object.__setattr__(self, "edges", tuple({(each.source, each.target): each for each in edges}.values()))
        object.__setattr__(self, "title", title)
        self._check()
        object.__setattr__(self, "order", self._sort_topologically())

    def _check(self) -> None:
        known: set[str] = set()
        for node in self.nodes:
            if node.id in known:
                raise ValueError(f"two nodes have the id {node.id!r}; ids of a graph are unique")
            known.add(node.id)
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in known:
                    raise ValueError(f"the edge {edge.source!r} -> {edge.target!r} ends at {end!r}, which is no node")
        for kind in ({node.kind for node in self.nodes} | {edge.kind for edge in self.edges}) - {""}:
            if not _KIND.fullmatch(kind):
                raise ValueError(f"{kind!r} is no kind: use lower-case letters, digits and -, beginning with a letter")

    def _sort_topologically(self) -> tuple[str, ...]:
        """Return the IDs of the nodes in topological order. Among several possible orders, choose the one closest to
        the given order.
        """
        sorter: TopologicalSorter[str] = TopologicalSorter({node.id: () for node in self.nodes})
        for edge in self.edges:
            sorter.add(edge.target, edge.source)
        try:
            return tuple(sorter.static_order())
        except CycleError as error:
            circle = " -> ".join(map(repr, reversed(error.args[1])))
            raise CyclicGraph(f"the graph has a cycle: {circle}; take one of these edges out") from None
