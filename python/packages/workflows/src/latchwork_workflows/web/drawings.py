"""A graph as SVG: its nodes are links and are colored by the style sheet of the page. Contains no script or style."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from latchwork.drawing import Box, EdgeLine, Graph, GraphNode, Layout, lay_out
from latchwork_workflows.web.pages import clean_value

#: The kind of an edge that is drawn reversed, because it closes a cycle: its arrow is at its source.
BACK = "back"
#: The kind of an edge that combines two opposite edges: it has two arrows.
BOTH = "both"


def draw_graph_svg(
    graph: Graph, layout: Layout | None = None, *, links: Mapping[str, str] | None = None, name: str = "dag"
) -> Markup:
    """Draw a graph as an ``<svg>`` element.

    Args:
        graph: The graph. The kinds of nodes become CSS classes ``state-...``.
        layout: The layout of this graph. None: compute one.
        links: The URL that each node links to, by node ID. Nodes without a URL are not links.
        name: An ID that is unique on the page.
    """
    layout = layout if layout is not None else lay_out(graph)
    head = Markup(
        '<svg class="dag" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
        'role="group" aria-label="{title}"><defs><marker id="{name}-arrow" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
    ).format(w=_number(layout.width), h=_number(layout.height), title=_visible_text(graph.title), name=name)
    parts = [head, *(_line(each, name) for each in layout.lines)]
    parts += [_box(node, layout.boxes[node.id], (links or {}).get(node.id, "")) for node in graph.nodes]
    return Markup("").join([*parts, Markup("</svg>")])


def _box(node: GraphNode, box: Box, link: str) -> Markup:
    inner = Markup(
        '<g class="node {kind}"><title>{title}</title><rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7"/>'
        '<text x="{cx}" y="{cy}">{text}</text></g>'
    ).format(
        kind=f"state-{node.kind}" if node.kind else "",
        title=_visible_text(node.title or node.text),
        x=_number(box.x),
        y=_number(box.y),
        w=_number(box.width),
        h=_number(box.height),
        cx=_number(box.x + box.width / 2),
        cy=_number(box.y + box.height / 2),
        text=_visible_text(box.text),
    )
    return Markup('<a href="{}">{}</a>').format(link, inner) if link else inner


def _line(line: EdgeLine, name: str) -> Markup:
    kind = f" state-{line.edge.kind}" if line.edge.kind else ""
    ends = {BACK: ("start",), BOTH: ("start", "end")}.get(line.edge.kind, ("end",))
    arrows = Markup("").join(Markup(' marker-{}="url(#{}-arrow)"').format(end, name) for end in ends)
    return Markup('<path class="edge{}" d="{}"{}/>').format(kind, line.path, arrows)


def _visible_text(text: str) -> str:
    return str(clean_value(text)).encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
