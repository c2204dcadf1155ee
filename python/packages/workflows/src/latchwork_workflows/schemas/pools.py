"""Pools: at most ``size`` tasks of a pool run at a time, in all workflows and on all workers together.

Tasks name their pool (DolphinScheduler calls it a task group). All tasks of a project share the pool ``@<project>``,
if there is one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from latchwork_workflows.schemas.base import Document
from latchwork_workflows.schemas.workers import ActiveTask

#: The name of a project's pool begins with this, and no other does.
PROJECT = "@"
#: The largest size: each slot is a key of the store.
MAX_SIZE = 10_000
POOL_PATTERN = r"^@?[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"
Admission = Literal["suspend", "fail", "precompute"]


class PoolChange(Document):
    """The size of a pool, and whether runs start while it is full.

    Attributes:
        size: How many of its tasks run at a time.
        admission: Of a project's pool: ``suspend`` starts a run, whose tasks wait; ``fail`` refuses it; ``precompute``
            makes it wait until its tasks fit.
    """

    size: Annotated[int, Field(ge=1, le=MAX_SIZE)]
    admission: Admission = "suspend"


class PoolSettings(PoolChange):
    """A pool as it is stored."""

    name: Annotated[str, StringConstraints(pattern=POOL_PATTERN)]

    @field_validator("name")
    @classmethod
    def _only_projects_refuse(cls, name: str, info: ValidationInfo) -> str:
        if info.data.get("admission", "suspend") != "suspend" and not name.startswith(PROJECT):
            raise ValueError("only the pool of a project, such as @billing, can refuse or delay runs")
        return name


class Pool(PoolSettings):
    """A pool and its use.

    Attributes:
        used: How many of its tasks run. None: the store cannot be reached.
        waiting: How many tasks are queued for a slot.
        active: Of a project's pool: how many tasks of the project are queued or running, with or without a slot.
        workflows: The workflows that name it and that the reader may see, as ``project.name``.
    """

    used: int | None
    waiting: int
    active: int | None = None
    workflows: list[str] = Field(default_factory=list)


class PoolDetail(Pool):
    """A pool with the tasks that hold its slots and the first tasks that wait for one.

    Attributes:
        holders: One task per slot that is taken, the longest first. None: the store cannot be reached.
        queue: The next tasks, in their order.
    """

    holders: list[ActiveTask] | None
    queue: list[ActiveTask]


def get_project_of_pool(pool: str) -> str | None:
    """Return the project of a pool that limits all tasks of one project, such as ``etl`` for ``@etl``.

    Return None for a pool of tasks, which task definitions name.
    """
    return pool[1:] if pool.startswith(PROJECT) else None


def get_pool_of_project(project: str) -> str:
    """Return the name of the pool of a project."""
    return PROJECT + project
