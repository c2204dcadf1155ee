"""A graph as SVG for a page: each node a link, coloured by the page's style sheet. No script, no style of its own."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from latchwork.drawing import Box, Graph, Layout, Line, Node, lay_out
from latchwork_workflows.web.pages import harmless

#: Of an edge that is drawn the other way round, as it would close a circle: its arrow is at its source.
BACK = "back"
#: Of an edge that stands for two, one in each direction: it has two arrows.
BOTH = "both"


def graph_svg(
    graph: Graph, layout: Layout | None = None, *, links: Mapping[str, str] | None = None, name: str = "dag"
) -> Markup:
    """The drawing as one ``<svg>`` element.

    Args:
        graph: what is drawn; kinds become classes ``state-...``.
        layout: of this graph; None finds one.
        links: where a node leads, by its id; one that is not there leads nowhere.
        name: unique on the page.
    """
    layout = layout if layout is not None else lay_out(graph)
    head = Markup(
        '<svg class="dag" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
        'role="group" aria-label="{title}"><defs><marker id="{name}-arrow" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
    ).format(w=_number(layout.width), h=_number(layout.height), title=_shown(graph.title), name=name)
    parts = [head, *(_line(each, name) for each in layout.lines)]
    parts += [_box(node, layout.boxes[node.id], (links or {}).get(node.id, "")) for node in graph.nodes]
    return Markup("").join([*parts, Markup("</svg>")])


def _box(node: Node, box: Box, link: str) -> Markup:
    inner = Markup(
        '<g class="node {kind}"><title>{title}</title><rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7"/>'
        '<text x="{cx}" y="{cy}">{text}</text></g>'
    ).format(
        kind=f"state-{node.kind}" if node.kind else "",
        title=_shown(node.title or node.text),
        x=_number(box.x),
        y=_number(box.y),
        w=_number(box.width),
        h=_number(box.height),
        cx=_number(box.x + box.width / 2),
        cy=_number(box.y + box.height / 2),
        text=_shown(box.text),
    )
    return Markup('<a href="{}">{}</a>').format(link, inner) if link else inner


def _line(line: Line, name: str) -> Markup:
    kind = f" state-{line.edge.kind}" if line.edge.kind else ""
    ends = {BACK: ("start",), BOTH: ("start", "end")}.get(line.edge.kind, ("end",))
    arrows = Markup("").join(Markup(' marker-{}="url(#{}-arrow)"').format(end, name) for end in ends)
    return Markup('<path class="edge{}" d="{}"{}/>').format(kind, line.path, arrows)


def _shown(text: str) -> str:
    return str(harmless(text)).encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
