"""Explains, from the stored state, why an item is on its node or does not run. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

from latchwork._base.text import counted, utc_text
from latchwork.assignment import Explanation, Problem, explain, parse_strategy
from latchwork.jobs.admin.inspect import ClusterState, JobState, LockView
from latchwork.jobs.cron_progress import describe_future_progress
from latchwork.jobs.manager.rebalance import ClusterView, WorkerView, create_job_problem
from latchwork.jobs.settings import Settings
from latchwork.jobs.stored.caches import describe_damaged_assignment
from latchwork.schedules import FireProgress

_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ItemExplanation:
    """The explanation of where an item is and whether it runs.

    Attributes:
        job: ID of its job.
        item: The item.
        in_pool: Whether the job's work pool contains it.
        enabled: Whether the job may run.
        able: Sorted nodes that can run the job and may have items.
        assigned: Node that it is assigned to; None if it is not assigned.
        locked_by: Node that holds its lock, so that it may be running there; None if it is free.
        strategy: Name of the strategy that placed it; None if unknown.
        reason: Reason of that strategy, as ``latchwork.assignment.Reason``; None if unknown.
        sentences: The explanation, most important sentence first.
    """

    job: str
    item: str
    in_pool: bool
    enabled: bool
    able: tuple[str, ...]
    assigned: str | None
    locked_by: str | None
    strategy: str | None
    reason: str | None
    sentences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON."""
        return asdict(self)


def explain_item(
    state: ClusterState,
    settings: Settings,
    job: str,
    item: str,
    fired: FireProgress | None = None,
    *,
    now_s: float | None = None,
) -> ItemExplanation:
    """Explain on which node an item is, and why it runs or does not run.

    Args:
        state: Result of ``inspect``.
        settings: Result of ``Control.settings``.
        job: ID of the job.
        item: The work item; it need not exist.
        fired: Recorded fire times of the item on the job's cron schedule, if known.
        now_s: Current time in seconds since the epoch, to detect recorded fire times in the future; None skips this
            check.
    Raises:
        UnknownJob: The cluster does not know the job; the message lists the known ones.
    """
    view = state.job(job)
    pool = state.pools.get(job, ())
    able = tuple(
        node for node in view.nodes if state.nodes[node].member.state == "ready" and node not in state.maintenance
    )
    lock = next((lock for lock in state.locks if (lock.job, lock.item) == (job, item)), None)
    assigned = view.assigned.get(item)
    sentences: list[str] = []
    if item not in pool:
        close = get_close_matches(item, pool, n=_MAX_SHOWN)
        sentences.append(
            f"item {item!r} is not in the work pool of job {job}, which has {counted(len(pool), 'item')}"
            + (f"; similar names are {', '.join(map(repr, close))}" if close else "")
        )
    if not able and view.unmet_labels:
        sentences.append(f"no running node can run job {job}: {_describe_missing_labels(view)}")
    if not settings.is_enabled(job):
        sentences.append(
            f"job {job} is disabled: {_describe_switch(settings, job)}; its items keep their nodes and do not run"
        )
    sentences += [
        describe_damaged_assignment(node, job, each.damaged[job])
        for node, each in sorted(state.nodes.items())
        if job in each.damaged
    ]
    sentences += _describe_placement(state, job, able, assigned) if item in pool or assigned else []
    strategy = state.strategies.get(job, state.strategies.get("*"))
    choice = _explain_placement(state, strategy, job, item) if strategy and assigned in able and item in pool else None
    if choice is not None:
        sentences.append(_describe_strategy_choice(choice, assigned))
    sentences += _describe_lock(state, assigned, lock, enabled=settings.is_enabled(job))
    sentences += _describe_run_history(view, item)
    if fired is not None:
        sentences.append(_describe_cron_progress(fired))
        if now_s is not None and (ahead_s := fired.ahead_s(now_s)):
            sentences.append(describe_future_progress(job, ahead_s))
    return ItemExplanation(
        job=job,
        item=item,
        in_pool=item in pool,
        enabled=settings.is_enabled(job),
        able=able,
        assigned=assigned,
        locked_by=None if lock is None else lock.holder.label,
        strategy=strategy,
        reason=choice.reason.value if choice is not None and choice.worker == assigned else None,
        sentences=tuple(sentences),
    )


def _describe_missing_labels(view: JobState) -> str:
    return ", ".join(
        f"{node} has it, but not the label{'s' if len(missing) > 1 else ''} "
        + ", ".join(f"{name}={value}" for name, value in sorted(missing.items()))
        for node, missing in sorted(view.unmet_labels.items())[:_MAX_SHOWN]
    )


def _describe_switch(settings: Settings, job: str) -> str:
    if settings.cluster.all_disabled:
        return "all jobs are"
    return "its switch is off" if settings.job(job).enabled is False else "the default is off and it has no switch"


def _describe_placement(state: ClusterState, job: str, able: tuple[str, ...], assigned: str | None) -> list[str]:
    view = state.job(job)
    out = [f"{node} ({_get_node_state(state, node)})" for node in view.nodes if node not in able]
    others = f"; not {', '.join(out)}" if out else ""
    if assigned is not None:
        sizes = {node: len(state.nodes[node].assigned.get(job, ())) for node in view.nodes}
        counts = ", ".join(f"{node} {sizes[node]}" for node in sorted(sizes))
        kept = (
            ""
            if assigned in able
            else f", which is {_get_node_state(state, assigned)}: it will move with the next rebalance"
        )
        able_now = f"able: {', '.join(able) or 'none'}{others}"
        return [
            f"it is assigned to node {assigned}{kept}",
            f"the job has {counted(view.items, 'item')}, distributed as {counts} ({able_now})",
        ]
    if not able:
        return [f"it is not assigned: no running node can run job {job}{others}; start one that has the job"]
    if state.manager is None:
        return ["it is not assigned: no node manages the cluster now; one is elected within the TTL"]
    return [
        f"it is not assigned yet: the manager {state.manager} has not rebalanced since then",
        f"able are {', '.join(able)}{others}; if that lasts, the manager's log says why (a strategy that raises?)",
    ]


def _explain_placement(state: ClusterState, strategy_word: str, job: str, item: str) -> Explanation | None:
    """Explain why a strategy places an item on its worker.

    Args:
        state: State of the cluster.
        strategy_word: Stored description of the strategy.
        job: ID of the job.
        item: The item.
    Returns:
        The explanation; None while nodes are restarting, and for a custom strategy.
    """
    strategy = parse_strategy(strategy_word)
    if strategy is None or any(record.state == "restarting" for record in state.maintenance.values()):
        return None
    assignments: dict[str, dict[str, tuple[str, ...]]] = {}
    workers = {}
    for name, node in state.nodes.items():
        if node.member.state == "ready" and name not in state.maintenance:
            workers[name] = WorkerView(node.member.weight, frozenset(node.jobs), node.member.labels)
        for of_job, items in node.assigned.items():
            assignments.setdefault(of_job, {})[name] = items
    view = ClusterView(workers, state.pools, assignments)
    alike = [
        each for each in sorted(state.pools) if state.strategies.get(each, state.strategies.get("*")) == strategy_word
    ]
    return explain(strategy, Problem(tuple(create_job_problem(view, each) for each in alike)), job, item)


def _describe_strategy_choice(choice: Explanation, assigned: str | None) -> str:
    if choice.worker == assigned:
        return f"strategy {choice.strategy}: {choice.text}"
    return f"strategy {choice.strategy} has {choice.worker} for it now: it will move with the next rebalance"


def _get_node_state(state: ClusterState, node: str) -> str:
    record = state.maintenance.get(node)
    return record.state if record is not None else state.nodes[node].member.state if node in state.nodes else "gone"


def _describe_lock(state: ClusterState, assigned: str | None, lock: LockView | None, *, enabled: bool) -> list[str]:
    if lock is None:
        if assigned is None or not enabled:
            return []
        return [f"its lock is free: node {assigned} is about to take it, or cannot reach the store"]
    holder = lock.holder.label
    lives = state.is_holder_running(lock)
    if lives and holder == assigned:
        since = "" if lock.since_s is None else f" since {utc_text(lock.since_s)}"
        return [f"node {holder} holds its lock{since} (fencing token {lock.token}): {_describe_activity(state, lock)}"]
    waiting = f"node {assigned} waits for it" if assigned else "no node waits for it"
    latest = f"{1.05 * lock.holder.ttl_s:.3g} s after the last renewal"
    if lives:
        stopping = "it was asked to stop and then releases the lock"
        held = f"its lock is still held by node {holder} (fencing token {lock.token})"
        return [f"{held}: {stopping}; {waiting}, at the latest until {latest}"]
    left = f"its lock was left by a dead process of node {holder} (fencing token {lock.token})"
    return [f"{left}: it expires {latest}; {waiting}"]


def _describe_activity(state: ClusterState, lock: LockView) -> str:
    said = [each for each in state.active if (each.job, each.node) == (lock.job, lock.holder.label)]
    for each in said:
        if lock.item in each.named:
            return f"a run of it has been active there since {utc_text(each.named[lock.item])}"
        if len(each.named) < each.items:
            others = f"{counted(each.items, 'item')} of the job in runs there, not all named"
            return f"it is running there or waits for its time: {others}"
    return "it waits for its time, or its run started within the last seconds"


def _describe_run_history(view: JobState, item: str) -> list[str]:
    """Return sentences about how the runs of an item and its job have ended, and when the next one is due."""
    sentences = []
    error = next((each for each in view.failing if each.item == item), None) or view.last_error
    if error is not None and error in view.failing:
        what = "its runs fail" if error.item == item else f"runs of the job fail, of item {error.item!r} and others"
        if error.item != item and error.items == 1:
            what = f"runs of item {error.item!r} fail"
        sentences.append(
            f"{what} on node {error.node}, {error.consecutive_failures} in a row, "
            f"last at {utc_text(error.at_s)}: {error.text}"
        )
    elif error is not None:
        sentences.append(f"a run of the job last failed at {utc_text(error.at_s)} on node {error.node}: {error.text}")
    moments = (("started", view.last_start_s), ("succeeded", view.last_success_s))
    known = [f"{what} at {utc_text(at_s)}" for what, at_s in moments if at_s is not None]
    if known:
        sentences.append(f"a run of the job last {', and last '.join(known)}")
    if view.next_start_s is not None:
        sentences.append(f"the next run of the job is due at {utc_text(view.next_start_s)}, as last reported")
    return sentences


def _describe_cron_progress(fired: FireProgress) -> str:
    if fired.running is not None:
        return f"on its cron schedule the run of {utc_text(fired.running)} has started and not ended"
    return f"on its cron schedule, everything is done up to {utc_text(fired.through)}"
