"""The options of a node, checked: nothing is started with one that cannot be used."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from latchwork.jobs.job.job import Job
from latchwork.jobs.node.membership import MemberOptions
from latchwork.jobs.worker.guard import LEAST_GRACE_S, STOP_MARGIN

log = logging.getLogger(__name__)

_LEAST = {"session_ttl_s": 0.1, "lock_ttl_s": 0.3, "weight": 1e-9}
_MOST_LACKS = 50
_OF_THE_MANAGER = ("debounce_s", "debounce_max_s", "cleanup_period_s", "sweep_period_s")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What ``JobManager`` was given, in seconds where a name ends so.

    Attributes:
        lock_ttl_s: how long item locks outlive the node.
        close_timeout_s: how long a close waits for runs.
        stop_timeout_s: after which a run that does not stop is reported.
        disconnect_grace_s: how long runs go on without the store; None is as long as the locks allow.
        member: what the node is registered with.
        manager: what it manages with when elected, by the names of ``ManagerOptions``.
    """

    lock_ttl_s: float
    close_timeout_s: float
    stop_timeout_s: float
    disconnect_grace_s: float | None
    member: MemberOptions
    manager: Mapping[str, float]

    @property
    def longest_grace_s(self) -> float:
        """For how long at most runs can go on without the store: as long as the locks allow, and the session lasts."""
        return min(self.lock_ttl_s * (1 - STOP_MARGIN), self.member.session_ttl_s)


def node_options(
    node_id: str, labels: Mapping[str, str] | None, disconnect_grace_s: float | None, **numbers: float
) -> NodeOptions:
    """Check all options.

    Args:
        node_id: checked already.
        labels: names to values.
        disconnect_grace_s: None for as long as the locks allow.
        numbers: all other options of ``JobManager`` that are numbers, by name.
    Raises:
        ValueError: one cannot be used; the message names it.
    """
    good = {name: _number(name, value) for name, value in numbers.items()}
    session_ttl_s, lock_ttl_s = good["session_ttl_s"], good["lock_ttl_s"]
    return NodeOptions(
        lock_ttl_s=lock_ttl_s,
        close_timeout_s=good["close_timeout_s"],
        stop_timeout_s=good["stop_timeout_s"],
        disconnect_grace_s=_grace(disconnect_grace_s, lock_ttl_s, session_ttl_s),
        member=MemberOptions(node_id, session_ttl_s=session_ttl_s, weight=good["weight"], labels=_labels(labels)),
        manager={name: good[name] for name in _OF_THE_MANAGER},
    )


def able_jobs(jobs: Mapping[str, Job], options: MemberOptions) -> dict[str, Job]:
    """The jobs whose demands this node's labels meet; the others are as if it did not have them."""
    lacks = lacking(jobs, options.labels)
    for job_id, missing in lacks.items():
        log.info("node %s gets no items of job %s, which requires %s", options.node_id, job_id, missing)
    return {job_id: job for job_id, job in jobs.items() if job_id not in lacks}


def lacking(jobs: Mapping[str, Job], labels: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The jobs of which the demands are not met, each with the labels that are missing."""
    found = {
        job_id: {name: value for name, value in job.requires.items() if labels.get(name) != value}
        for job_id, job in jobs.items()
    }
    return {job_id: missing for job_id, missing in found.items() if missing}


def with_lacks(options: MemberOptions, jobs: Mapping[str, Job]) -> MemberOptions:
    """What a node says about itself, with the jobs it has and cannot run, so that the cluster knows of them.

    Of very many only the first are told: this stands in the record that everybody follows.
    """
    lacks = lacking(jobs, options.labels)
    return replace(options, lacks={job_id: lacks[job_id] for job_id in sorted(lacks)[:_MOST_LACKS]})


def _labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    given: Mapping[Any, Any] = labels or {}  # callers without a type checker pass anything
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            msg = f"labels has {name!r}: {value!r}; give names and values as str"
            raise ValueError(msg)  # noqa: TRY004 - as for every other option
    return dict(given)


def _grace(grace_s: object, lock_ttl_s: float, session_ttl_s: float) -> float | None:
    if grace_s is None:
        return None
    seconds = _number("disconnect_grace_s", grace_s, least=LEAST_GRACE_S)
    longest_s = lock_ttl_s * (1 - STOP_MARGIN)
    if seconds > longest_s:
        msg = f"disconnect_grace_s is {seconds:g}, but locks of {lock_ttl_s:g} s allow {longest_s:g}; raise lock_ttl_s"
        raise ValueError(msg)
    if seconds > session_ttl_s:
        after = f"others get the items after {session_ttl_s:g} s"
        msg = f"disconnect_grace_s is {seconds:g}, but {after}; raise session_ttl_s"
        raise ValueError(msg)
    return seconds


def _number(name: str, value: object, *, least: float | None = None) -> float:
    least = _LEAST.get(name, 0.0) if least is None else least
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= least
    if not good or not isinstance(value, (int, float)):
        unit = " seconds" if name.endswith("_s") else ""
        msg = f"{name} is {value!r}; give a finite number of at least {least:g}{unit}"
        raise ValueError(msg)
    return float(value)
