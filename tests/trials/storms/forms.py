"""The systems that storms hurt: for each its load, its faults and its judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends_table import SHARED
from trials.storms.executor import ExecutorLoad, judge_executor
from trials.storms.jobs import JobsLoad, judge_jobs
from trials.storms.kinds import Kind, kinds_of
from trials.storms.plans import PlansLoad, judge_plans
from trials.storms.storm import Load, Storm
from trials.storms.workers import WorkersLoad, judge_workers
from trials.storms.workflows import PAIRS, WorkflowsLoad, judge_workflows, kinds_of_pair


@dataclass(frozen=True)
class Form:
    """A system under a storm.

    Attributes:
        load: makes the load, given the place and options such as the number of workers.
        kinds: the kinds of faults at a place.
        judge: see ``Storm``.
        places: names of the places, and the backend of the store at each.
        least_of_each: so many faults of each kind have to land in a long storm.
    """

    load: Callable[..., Load]
    kinds: Callable[[str], Mapping[str, Kind]]
    judge: Callable[[Storm], tuple[list[str], dict[str, Any]]]
    places: Mapping[str, str]
    least_of_each: int = 5


_BACKENDS = {backend: backend for backend in SHARED}
FORMS = {
    "jobs": Form(lambda _: JobsLoad(), lambda at: kinds_of(at, "worker", "manager"), judge_jobs, _BACKENDS),
    "executor": Form(
        lambda _: ExecutorLoad(), lambda at: kinds_of(at, "worker", "submitter"), judge_executor, _BACKENDS
    ),
    "plans": Form(lambda _, **how: PlansLoad(**how), lambda at: kinds_of(at, "worker"), judge_plans, _BACKENDS),
    "workers": Form(lambda _: WorkersLoad(), lambda at: kinds_of(at, "worker"), judge_workers, _BACKENDS),
    "workflows": Form(WorkflowsLoad, kinds_of_pair, judge_workflows, PAIRS, least_of_each=2),
}


def storm_of(of: str, place: str, *, seed: int, folder: Path, members: int = 1, **options: Any) -> Storm:
    """Return a storm over a system at a place."""
    form, backend = FORMS[of], FORMS[of].places[place]
    return Storm(
        form.load(place, **options),
        form.kinds(place),
        form.judge,
        backend,
        seed=seed,
        folder=folder,
        members=1 if backend == "sqlite" else members,
        name=(of, place),
    )
