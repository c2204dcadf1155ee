"""Drawings of graphs without cycles: laid out in layers, as SVG, and as text for Mermaid and Graphviz.

Pure: it knows nothing of a store, and the same graph gives the same drawing. It keeps to itself how a layout is found.
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
