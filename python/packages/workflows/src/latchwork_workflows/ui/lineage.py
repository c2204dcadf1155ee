"""The lineage page: dependencies between workflows, as a drawing and as a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from latchwork.drawing import Edge, Graph, GraphNode, Layout, lay_out
from latchwork_workflows.db import workflow_queries
from latchwork_workflows.services.context import get_context
from latchwork_workflows.services.lineage import LineageEdge, LineageGraph, build_lineage
from latchwork_workflows.ui.dag_svg import MAX_DRAWN
from latchwork_workflows.ui.page_helpers import build_url, render_page
from latchwork_workflows.web import BACK, BOTH, CurrentUser, draw_graph_svg

router = APIRouter()
_MAX = 200
_Word = Annotated[str, Query(max_length=100)]
_Pairs = tuple[tuple[str, str], ...]


@router.get("/lineage", response_class=HTMLResponse)
def show_lineage(
    *,
    request: Request,
    user: CurrentUser,
    project: _Word = "",
    workflow: _Word = "",
    start: Annotated[int, Query(ge=0, le=10**6)] = 0,
    draw: int = 0,
) -> HTMLResponse:
    """Show the dependencies between workflows as a drawing and as a table.

    A project is shown with its neighbors. A workflow is shown with everything upstream and downstream of it.
    """
    context, project = get_context(request), project.replace("\x00", "")
    workflow = workflow.replace("\x00", "") if project else ""
    found = build_lineage(context, user, project=project, workflow=workflow)
    with context.database.read() as connection:
        among = user.get_projects()
        projects = [each for each in workflow_queries.list_projects(connection) if among is None or each in among]
    focus = f"{project}.{workflow}" if workflow else ""
    is_drawn = found.links and (len(found.workflows) <= MAX_DRAWN or bool(draw))
    more = build_url("/lineage", project=project, workflow=workflow, start=start + _MAX)
    return render_page(
        request,
        user,
        "lineage.html",
        found=found,
        links=found.links[start : start + _MAX],
        more=more if len(found.links) > start + _MAX else "",
        svg=draw_lineage_svg(found, focus) if is_drawn else None,
        projects=projects,
        project=project,
        workflow=workflow,
        draw_all=build_url("/lineage", project=project, workflow=workflow, draw=1),
    )


def draw_lineage_svg(found: LineageGraph, focus: str = "") -> Markup:
    """Draw dependencies between workflows as SVG. Each workflow is above the workflows that depend on it.

    Args:
        found: The dependencies.
        focus: ``project.name`` of the workflow to highlight. Empty: none.
    """
    pairs = tuple(dict.fromkeys(_edge_direction(each) for each in found.links))
    back = find_back_edges(tuple(found.workflows), pairs)
    kinds = {_edge_direction(each): each.other.kind.replace("_", "-") for each in reversed(found.links)}
    edges = [each for pair in pairs for each in _yield_edge(pair, kinds, back)]
    nodes = [
        GraphNode(name, kind=_kind(name, row, focus), title=_title(name, row)) for name, row in found.workflows.items()
    ]
    links = {name: f"/workflows/{row.project}/{row.name}" for name, row in found.workflows.items() if row is not None}
    graph = Graph(nodes, edges, "which workflows start others or wait for them")
    return draw_graph_svg(graph, _compute_layout(tuple(found.workflows), tuple(edges)), links=links)


def _yield_edge(
    pair: tuple[str, str], kinds: Mapping[tuple[str, str], str], back: Collection[tuple[str, str]]
) -> Iterator[Edge]:
    """Yield the edge to draw for a pair of workflows, or nothing.

    Two workflows that refer to each other share one edge with two arrows, which is drawn for one of their pairs. A
    reference of a workflow to itself is not drawn.

    Args:
        pair: The two workflows.
        kinds: The kind of each dependency, by its pair of workflows.
        back: The pairs that close a cycle.
    """
    other = pair[::-1]
    if pair == other or (pair in back and other in kinds and other not in back):
        return
    if pair in back:
        yield Edge(*other, BACK)
    else:
        yield Edge(*pair, BOTH if other in kinds else kinds[pair])


def _edge_direction(link: LineageEdge) -> tuple[str, str]:
    pair = (link.workflow, link.other.workflow)
    return pair if link.other.kind == "sub_process" else pair[::-1]


def _kind(name: str, row: object, focus: str) -> str:
    if row is None:
        return "missing"
    return "focus" if name == focus else "" if getattr(row, "online", True) else "offline"


def _title(name: str, row: object) -> str:
    if row is None:
        return f"{name}: there is no such workflow"
    return name if getattr(row, "online", True) else f"{name}: offline"


def find_back_edges(names: Sequence[str], pairs: _Pairs) -> set[tuple[str, str]]:
    """Return the edges of a graph that close cycles, found by a depth-first search.

    Args:
        names: The nodes.
        pairs: The edges.
    """
    ways: dict[str, list[str]] = {}
    for source, target in pairs:
        ways.setdefault(source, []).append(target)
    found: set[tuple[str, str]] = set()
    done: set[str] = set()
    for name in _roots_first(names, pairs):
        if name not in done:
            _walk(name, ways, done, found)
    return found


def _roots_first(names: Sequence[str], pairs: _Pairs) -> list[str]:
    led_to = {target for _, target in pairs}
    return sorted(names, key=lambda name: name in led_to)


def _walk(name: str, ways: Mapping[str, Iterable[str]], done: set[str], found: set[tuple[str, str]]) -> None:
    inside, stack = {name}, [(name, iter(ways.get(name, ())))]
    while stack:
        at, rest = stack[-1]
        following = next(rest, None)
        if following is None:
            stack.pop()
            inside.discard(at)
            done.add(at)
        elif following in inside:
            found.add((at, following))
        elif following not in done:
            inside.add(following)
            stack.append((following, iter(ways.get(following, ()))))


@lru_cache(maxsize=16)
def _compute_layout(names: tuple[str, ...], edges: tuple[Edge, ...]) -> Layout:
    """Compute the layout of the graph. The result is cached, because it only changes when a definition is applied."""
    return lay_out(Graph([GraphNode(name) for name in names], edges))
