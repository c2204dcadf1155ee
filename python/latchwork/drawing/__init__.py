"""Drawings of acyclic graphs: a layered layout, SVG, and text for Mermaid and Graphviz.

Pure: it does not know about stores, and the same graph gives the same drawing.
"""

from latchwork.drawing.formats import to_dot, to_mermaid, to_svg
from latchwork.drawing.graph import CyclicGraph, Edge, Graph, GraphNode
from latchwork.drawing.layout import Box, EdgeLine, Layout, lay_out

__all__ = [
    "Box",
    "CyclicGraph",
    "Edge",
    "EdgeLine",
    "Graph",
    "GraphNode",
    "Layout",
    "lay_out",
    "to_dot",
    "to_mermaid",
    "to_svg",
]
