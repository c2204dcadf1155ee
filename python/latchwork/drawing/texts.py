"""A graph as text for Mermaid and for Graphviz, which lay it out themselves.

Nodes get names of ours (``n0``, ``n1``): what stands in a label can neither end it nor be taken for their syntax.
"""

from __future__ import annotations

from latchwork.drawing.graph import Graph
from latchwork.drawing.svg import COLOURS

_MERMAID = str.maketrans(
    {each: f"#{ord(each)};" for each in '"#<>&[](){}|\\`;:'} | {"\n": " ", "\r": " ", "\t": " "},
)


def to_mermaid(graph: Graph) -> str:
    """A Mermaid flowchart: for a fenced code block of Markdown."""
    names = _names(graph)
    lines = ["flowchart TD"]
    lines += [f'    {names[node.id]}["{_plain(node.text).translate(_MERMAID)}"]' for node in graph.nodes]
    lines += [f"    {names[edge.source]} --> {names[edge.target]}" for edge in graph.edges]
    for kind in _kinds(graph):
        fill, border, text = COLOURS.get(kind, COLOURS[""])[:3]
        members = ",".join(names[node.id] for node in graph.nodes if node.kind == kind)
        lines.append(f"    classDef {_class(kind)} fill:{fill},stroke:{border},color:{text}")
        lines.append(f"    class {members} {_class(kind)}")
    return "\n".join(lines) + "\n"


def to_dot(graph: Graph) -> str:
    """A digraph for Graphviz: ``dot -Tsvg``."""
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


def _kinds(graph: Graph) -> list[str]:
    return sorted({node.kind for node in graph.nodes} - {""})


def _class(kind: str) -> str:
    """`end` and the like are words of Mermaid."""
    return f"kind_{kind.replace('-', '_')}"


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text).encode("utf-8", "replace").decode()


def _quoted(text: str) -> str:
    return '"' + _plain(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
