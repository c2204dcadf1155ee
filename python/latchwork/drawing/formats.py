"""Graphs as SVG, and as text for Mermaid and Graphviz, which compute their own layout.

The SVG is a complete document that also works inside a page, in light and dark mode. Colors are CSS variables of the
classes ``kind-...``, so that a page may set them. External text is escaped; there are no scripts and no external
references. In text formats, nodes get generated names (``n0``, ``n1``), so that labels cannot break the syntax.
"""

from __future__ import annotations

from html import escape
from zlib import crc32

from latchwork.drawing.graph import Graph, GraphNode
from latchwork.drawing.layout import Box, EdgeLine, Layout, format_px, lay_out

#: Fill, border and text, first in light and then in dark; what has another kind looks like what has none.
COLOURS = {
    "": ("#ffffff", "#6b7280", "#1f2937", "#1f2430", "#8b93a3", "#e5e7eb"),
    "waiting": ("#f3f4f6", "#9ca3af", "#4b5563", "#262b36", "#6b7280", "#c3c9d4"),
    "ready": ("#e0f2fe", "#0284c7", "#0c4a6e", "#0c2f44", "#38bdf8", "#bae6fd"),
    "running": ("#fef3c7", "#d97706", "#78350f", "#422a08", "#fbbf24", "#fde68a"),
    "done": ("#dcfce7", "#16a34a", "#14532d", "#0f3420", "#4ade80", "#bbf7d0"),
    "failed": ("#fee2e2", "#dc2626", "#7f1d1d", "#441414", "#f87171", "#fecaca"),
    "skipped": ("#ede9fe", "#7c3aed", "#4c1d95", "#2a1c4d", "#a78bfa", "#ddd6fe"),
    "cancelled": ("#e5e7eb", "#4b5563", "#374151", "#31353d", "#9ca3af", "#d1d5db"),
}
_NAMES = ("fill", "border", "text")

_MERMAID = str.maketrans(
    {each: f"#{ord(each)};" for each in '"#<>&[](){}|\\`;:'} | {"\n": " ", "\r": " ", "\t": " "},
)


def to_svg(graph: Graph, layout: Layout | None = None) -> str:
    """Draw a graph as one ``<svg>`` element.

    Args:
        graph: Graph to draw.
        layout: Layout of this graph; None computes one.
    """
    layout = layout if layout is not None else lay_out(graph)
    name = f"g{crc32(repr((graph.title, graph.order)).encode('utf-8', 'replace')):08x}"  # ids are the page's: one each
    title = graph.title or f"{len(graph.nodes)} nodes"
    width, height = format_px(layout.width), format_px(layout.height)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="latchwork-graph" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="{name}-title">'
    )
    arrow = (
        f'<defs><marker id="{name}-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    parts = [
        head,
        f'<title id="{name}-title">{_escape_text(title)}</title>',
        f"<style>{_style()}</style>",
        arrow,
        *(_line(each, name) for each in layout.lines),
        *(_box(node, layout.boxes[node.id]) for node in graph.nodes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(node: GraphNode, box: Box) -> str:
    label = _escape_text(node.title or node.text)
    kind = f" kind-{node.kind}" if node.kind else ""
    middle = f'x="{format_px(box.x + box.width / 2)}" y="{format_px(box.y + box.height / 2)}"'
    return (
        f'<g class="node{kind}"><title>{label}</title>'
        f'<rect x="{format_px(box.x)}" y="{format_px(box.y)}" width="{format_px(box.width)}" '
        f'height="{format_px(box.height)}" rx="6"/><text {middle}>{_escape_text(box.text)}</text></g>'
    )


def _line(line: EdgeLine, name: str) -> str:
    kind = f" kind-{line.edge.kind}" if line.edge.kind else ""
    label = _escape_text(f"{line.edge.source} to {line.edge.target}")
    return f'<path class="edge{kind}" d="{line.path}" marker-end="url(#{name}-arrow)"><title>{label}</title></path>'


def _style() -> str:
    light = "".join(_variables(kind, colours[:3]) for kind, colours in COLOURS.items())
    dark = "".join(_variables(kind, colours[3:]) for kind, colours in COLOURS.items())
    return (
        f"{light}@media (prefers-color-scheme: dark){{{dark}}}"
        ".latchwork-graph .node rect{fill:var(--fill);stroke:var(--border);stroke-width:1.3}"
        ".latchwork-graph .node text{fill:var(--text);font:13px ui-monospace,monospace;text-anchor:middle;"
        "dominant-baseline:central}"
        ".latchwork-graph .edge{fill:none;stroke:var(--border);stroke-width:1.2}"
        ".latchwork-graph .head{fill:var(--border)}"
    )


def _variables(kind: str, colours: tuple[str, ...]) -> str:
    where = f".latchwork-graph .kind-{kind}" if kind else ".latchwork-graph"
    return where + "{" + ";".join(f"--{name}:{value}" for name, value in zip(_NAMES, colours, strict=True)) + "}"


def _escape_text(text: str) -> str:
    """Escape a text for XML, and remove characters that XML does not allow."""
    kept = (each if each.isprintable() or each in "\n\t" else "�" for each in text)
    return escape("".join(kept).encode("utf-8", "replace").decode(), quote=True)


def to_mermaid(graph: Graph) -> str:
    """Convert a graph to a Mermaid flowchart, for a code block in Markdown."""
    names = _names(graph)
    lines = ["flowchart TD"]
    lines += [f'    {names[node.id]}["{_plain(node.text).translate(_MERMAID)}"]' for node in graph.nodes]
    lines += [f"    {names[edge.source]} --> {names[edge.target]}" for edge in graph.edges]
    for kind in sorted({node.kind for node in graph.nodes} - {""}):
        fill, border, text = COLOURS.get(kind, COLOURS[""])[:3]
        members = ",".join(names[node.id] for node in graph.nodes if node.kind == kind)
        lines.append(f"    classDef {_make_class_name(kind)} fill:{fill},stroke:{border},color:{text}")
        lines.append(f"    class {members} {_make_class_name(kind)}")
    return "\n".join(lines) + "\n"


def to_dot(graph: Graph) -> str:
    """Convert a graph to the DOT language of Graphviz, for ``dot -Tsvg``."""
    names = _names(graph)
    lines = [f"digraph {_quoted(graph.title)} {{", '    node [shape=box, style="rounded,filled", fontname=monospace];']
    for node in graph.nodes:
        fill, border, text = COLOURS.get(node.kind, COLOURS[""])[:3]
        lines.append(
            f"    {names[node.id]} [label={_quoted(node.text)}, tooltip={_quoted(node.title or node.text)}, "
            f'fillcolor="{fill}", color="{border}", fontcolor="{text}"];'
        )
    lines += [f"    {names[edge.source]} -> {names[edge.target]};" for edge in graph.edges]
    return "\n".join([*lines, "}"]) + "\n"


def _names(graph: Graph) -> dict[str, str]:
    return {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}


def _make_class_name(kind: str) -> str:
    """Return a class name for a kind of node. Unlike the kind itself, it cannot be a keyword of Mermaid such as
    `end`.
    """
    return f"kind_{kind.replace('-', '_')}"


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text).encode("utf-8", "replace").decode()


def _quoted(text: str) -> str:
    return '"' + _plain(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
