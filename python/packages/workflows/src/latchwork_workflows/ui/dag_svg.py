"""A workflow as SVG: its tasks in layers, colored by state for a run. Pure except for a cache of layouts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from latchwork.drawing import Edge, Graph, GraphNode, Layout, lay_out
from latchwork_workflows.model.definition import Definition
from latchwork_workflows.web import draw_graph_svg

#: Larger workflows are not drawn by default: it takes seconds, and the drawing is hard to read.
MAX_DRAWN = 300

_Shape = tuple[tuple[str, tuple[str, ...]], ...]


def draw_workflow_svg(
    definition: Definition, states: Mapping[str, str] | None = None, links: Mapping[str, str] | None = None
) -> Markup:
    """Draw the tasks of a workflow as SVG, colored by state.

    Args:
        definition: The workflow.
        states: The states of the tasks of a run, by task name. None: draw the workflow itself instead of a run.
        links: The URL that each task links to, by task name.
    """
    shape: _Shape = tuple((task.name, task.after) for task in definition.tasks)
    known = states or {}
    nodes = [
        GraphNode(task.name, kind=known.get(task.name, "").replace("_", "-"), title=_title(task, known.get(task.name)))
        for task in definition.tasks
    ]
    graph = Graph(nodes, _edges(shape), f"the tasks of {definition.key}")
    return draw_graph_svg(graph, _compute_layout(shape), links=links)


def _title(task: Any, state: str | None) -> str:
    words = [f"{task.name}: {state.replace('_', ' ') if state else task.type}"]
    if task.description:
        words.append(task.description)
    return "\n".join(words)


def _edges(shape: _Shape) -> list[Edge]:
    return [Edge(before, name) for name, after in shape for before in after]


@lru_cache(maxsize=64)
def _compute_layout(shape: _Shape) -> Layout:
    """Compute the layout of a workflow's graph. The result is cached, because it does not depend on states."""
    return lay_out(Graph([GraphNode(name) for name, _ in shape], _edges(shape)))
