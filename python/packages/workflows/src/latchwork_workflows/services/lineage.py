"""Dependencies: which workflows start others, and which wait for others' runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from latchwork_workflows.db import workflow_queries
from latchwork_workflows.model.lineage import WorkflowReference
from latchwork_workflows.services.context import ServiceContext, require_visible
from latchwork_workflows.web import Identity, Role

Row: TypeAlias = Any


class LineageEdge(NamedTuple):
    """A reference from one workflow to another.

    Attributes:
        workflow: ``project.name`` of the workflow whose task has the reference.
        other: The reference.
    """

    workflow: str
    other: WorkflowReference


class LineageGraph(NamedTuple):
    """Some workflows and the links between them.

    Attributes:
        workflows: Rows by ``project.name``, sorted. None: the workflow does not exist.
        links: Sorted by workflow and order of its tasks.
        alone: Number of selected workflows without any link.
    """

    workflows: dict[str, Row | None]
    links: list[LineageEdge]
    alone: int


def build_lineage(context: ServiceContext, user: Identity, *, project: str = "", workflow: str = "") -> LineageGraph:
    """Return the dependencies between workflows. Workflows that the account may not see are left out.

    Args:
        context: The service context of this process.
        user: The requesting account.
        project: Return only workflows of this project and their neighbors. Empty: all projects.
        workflow: If a project is given, return only this workflow and all workflows upstream and downstream of it.
    Raises:
        HttpProblem: 404 (not found) if there is no such project or workflow or the account may not see it.
    """
    with context.database.read() as connection:
        if workflow:
            require_visible(
                user, workflow_queries.find_workflow(connection, project, workflow), f"workflow {project}.{workflow}"
            )
        rows = workflow_queries.list_newest_versions(connection, user.get_projects())
        names = context.lineage.get_references(connection, rows)
    known: dict[str, Row | None] = {f"{row.project}.{row.name}": row for row in rows}
    links = [
        LineageEdge(f"{row.project}.{row.name}", each)
        for row in rows
        for each in names[row.code]
        if user.has_role(Role.VIEWER, each.workflow.partition(".")[0])
    ]
    if workflow:
        return _select_neighborhood(known, links, f"{project}.{workflow}")
    wanted = {name for name in known if project in {"", name.partition(".")[0]}}
    kept = [each for each in links if not project or project in _projects(each)]
    linked = _linked_workflows(kept)
    return LineageGraph({name: known.get(name) for name in sorted(linked)}, kept, len(wanted - linked))


def _projects(link: LineageEdge) -> set[str]:
    return {name.partition(".")[0] for name in (link.workflow, link.other.workflow)}


def _linked_workflows(links: Iterable[LineageEdge]) -> set[str]:
    return {name for each in links for name in (each.workflow, each.other.workflow)}


def _select_neighborhood(known: dict[str, Row | None], links: Sequence[LineageEdge], name: str) -> LineageGraph:
    """Return a workflow with all workflows upstream and downstream of it.

    Args:
        known: The rows of all workflows, by ``project.name``.
        links: All references between workflows.
        name: ``project.name`` of the workflow.
    """
    below: dict[str, list[str]] = {}
    above: dict[str, list[str]] = {}
    for each in links:
        below.setdefault(each.workflow, []).append(each.other.workflow)
        above.setdefault(each.other.workflow, []).append(each.workflow)
    wanted = _reachable(below, name) | _reachable(above, name)
    kept = [each for each in links if each.workflow in wanted and each.other.workflow in wanted]
    return LineageGraph({each: known.get(each) for each in sorted(wanted)}, kept, 0)


def _reachable(ways: dict[str, list[str]], start: str) -> set[str]:
    found, open_ = {start}, [start]
    while open_:
        for each in ways.get(open_.pop(), ()):
            if each not in found:
                found.add(each)
                open_.append(each)
    return found
