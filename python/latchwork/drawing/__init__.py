"""Drawings of acyclic graphs: a layered layout, SVG, and text for Mermaid and Graphviz.

Pure: it does not know about stores, and the same graph gives the same drawing.
"""

from latchwork.drawing.formats import to_dot, to_mermaid, to_svg
from latchwork.drawing.graph import CyclicGraph, Edge, Graph, Node
from latchwork.drawing.layout import Box, Layout, Line, lay_out

__all__ = [
    "Box",
    "CyclicGraph",
    "Edge",
    "Graph",
    "Layout",
    "Line",
    "Node",
    "lay_out",
    "to_dot",
    "to_mermaid",
    "to_svg",
]
