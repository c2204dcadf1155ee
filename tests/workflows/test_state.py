"""What happens to a run, as stories that read like a specification, and what holds in all of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchwork_workflows.errors import WrongState
from latchwork_workflows.state import (
    ChildForced,
    ChildPaused,
    Chose,
    Claimed,
    Ended,
    Expanded,
    ForceStart,
    ForceSuccess,
    Lost,
    OnFailure,
    Outcome,
    Pause,
    Recover,
    Removed,
    Rerun,
    Resume,
    RunState,
    Start,
    Stop,
    TaskRule,
    TaskState,
    Wake,
    WorkflowPlan,
    WorkflowRun,
    advance,
    conditions,
)
from levels import LONG
from workflows.golden_state import STORIES, told


@pytest.mark.parametrize("path", sorted(STORIES.glob("*.txt")), ids=lambda path: path.stem)
def test_story_goes_as_written(path):
    assert told(path) == path.read_text()


@st.composite
def plans(draw):
    count = draw(st.integers(1, 5))
    rules = {}
    for index in range(count):
        before = [f"t{each}" for each in range(index) if draw(st.booleans())]
        rules[f"t{index}"] = TaskRule(
            tuple(before),
            retries=draw(st.integers(0, 1)),
            retry_interval_s=draw(st.sampled_from([0, 5])),
            delay_s=draw(st.sampled_from([0, 0, 3])),
            max_queued_s=draw(st.sampled_from([None, None, 3])),
            enabled=draw(st.integers(0, 5)) > 0,
        )
    return WorkflowPlan(rules, on_failure=draw(st.sampled_from(OnFailure)), timeout_s=draw(st.sampled_from([None, 30])))


@given(plans(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_every_history_ends_in_a_final_state_and_no_task_starts_before_those_it_waits_for(plan, random):
    now, run = 0.0, advance(plan, WorkflowRun(), [Start()], 0.0)
    for step in range(400):
        now += random.choice([0, 1, 4]) if step < 200 else 4
        before = run
        event = an_event(run, random, step)
        try:
            run = advance(plan, run, [event], now)
        except WrongState:
            continue
        check(plan, before, run, now)
        if step > 100 and run.state in {RunState.SUCCESS, RunState.FAILURE, RunState.STOPPED}:
            return
    raise AssertionError(run)


def an_event(run, random, step):
    """One that may happen now; late in the story no commands, so that it ends."""
    if step < 100 and random.random() < 0.1:
        return random.choice([Pause, Resume, Stop, Recover, Rerun])()
    if step >= 100 and run.state in {RunState.PAUSED, RunState.READY_PAUSE}:
        return Resume()
    removing = set(run.tasks_to_withdraw)
    possible = [Wake()]
    for name, task in run.tasks.items():
        if task.state is TaskState.SUBMITTED:
            possible.append(Claimed(name, task.n, run.round))
            possible += [Removed(name, task.n, run.round)] * (name in removing)
        if task.state is TaskState.RUNNING:
            possible += [Ended(name, task.n, random.choice(list(Outcome)[:2]), run.round)] * 3
            possible += [Lost(name, task.n, run.round)] * (step < 200)
            if name in run.tasks_to_kill:
                possible.append(Ended(name, task.n, Outcome.KILLED, run.round))
    if step >= 200:  # whatever is chosen, something goes on
        return possible[1 + step % (len(possible) - 1)] if len(possible) > 1 else Wake()
    possible.append(Ended(random.choice(list(run.tasks)), 1, Outcome.FAILURE, max(1, run.round - 1)))
    return random.choice(possible)


def check(plan, before, run, now):
    done = {TaskState.SUCCESS, TaskState.SKIPPED, TaskState.FORCED_SUCCESS}
    for name in run.get_changed_tasks(before):
        task = run.tasks[name]
        was = before.tasks.get(name, task)
        if task.is_overdue and was.n == task.n:
            assert now >= task.fails_at
        elif task.state is TaskState.SUBMITTED and was.state is not TaskState.RUNNING:
            assert all(run.tasks[each].state in done for each in plan.rules[name].after)
            assert run.state is RunState.RUNNING
            assert not run.ending
            assert task.n == before.tasks[name].n + 1 or run.round > before.round
    if run.state in {RunState.SUCCESS, RunState.FAILURE, RunState.STOPPED, RunState.PAUSED}:
        assert not any(task.state in {TaskState.SUBMITTED, TaskState.RUNNING} for task in run.tasks.values())
    if run.state is RunState.SUCCESS:
        assert all(task.state in done for task in run.tasks.values())
    again = advance(plan, run, [], now)
    assert (again.state, again.tasks, again.timeline_events) == (run.state, run.tasks, ())  # settled: nothing follows


@st.composite
def held_plans(draw):
    """Plans with tasks that the master holds; two forks, the last tasks of which they share."""
    rules = {}
    for index in range(draw(st.integers(1, 4))):
        before = tuple(f"t{each}" for each in range(index) if draw(st.booleans()))
        kind = draw(st.sampled_from(["", "sub_process", "dependent"]))
        maps = kind != "dependent" and draw(st.booleans())
        rules[f"t{index}"] = TaskRule(before, kind=kind, maps=maps, map_parallel=draw(st.sampled_from([None, 1])))
    for fork, before in {"fork": tuple(rules)[-1], "other": draw(st.sampled_from(tuple(rules)))}.items():
        kind = draw(st.sampled_from(["conditions", "switch"]))
        when = conditions.TaskEnded(before)
        rules[fork] = TaskRule((before,), kind=kind, heads=("x", "y"), branches=(("x",), ("y",)), when=when)
    rules |= {"x": TaskRule(("fork", "other")), "y": TaskRule(draw(st.permutations(("fork", "other"))))}
    rules |= {"behind": TaskRule(("y",)), "join": TaskRule(("x", "behind"))}
    return WorkflowPlan(rules, on_failure=draw(st.sampled_from(OnFailure)))


@given(held_plans(), st.randoms(use_true_random=False))
@settings(max_examples=20_000 if LONG else 40, deadline=None)
def test_every_history_with_held_tasks_ends_and_no_worker_is_asked_about_them(plan, random):
    now, run = 0.0, advance(plan, WorkflowRun(), [Start()], 0.0)
    for step in range(600):
        now += random.choice([0, 1])
        run = answered(plan, run, random, now)
        check_held(plan, run)
        if step > 150 and run.state in ENDED:
            return
        try:
            run = advance(plan, run, [a_held_event(plan, run, random, step)], now)
        except WrongState:
            continue
        again = advance(plan, run, [], now)
        assert (again.state, again.tasks, again.timeline_events) == (run.state, run.tasks, ())
    raise AssertionError(run)


ENDED = {RunState.SUCCESS, RunState.FAILURE, RunState.STOPPED}


def check_held(plan, run):
    assert not any(run.tasks[name].runs_on_master for name in (*run.tasks_to_withdraw, *run.tasks_to_kill))
    assert all(plan.get_kind(name) for name, task in run.tasks.items() if task.runs_on_master)
    states = {task.state for task in run.tasks.values()}
    if run.state in ENDED | {RunState.PAUSED}:
        assert not states & {TaskState.SUBMITTED, TaskState.RUNNING}
    if run.state is RunState.SUCCESS:
        assert TaskState.WAITING not in states
    for head in set("xy") & run.tasks.keys():
        forks = [run.tasks[each] for each in ("fork", "other")]
        if run.tasks[head].is_cut:
            assert all(fork.is_cut or head not in fork.chosen for fork in forks)
        elif run.tasks[head].state in {TaskState.SUBMITTED, TaskState.RUNNING, TaskState.SUCCESS}:
            assert any(fork.chosen is None or head in fork.chosen for fork in forks)


def answered(plan, run, random, now):
    """What a master does at once: choose, expand and gather, one answer after the other."""
    todo = list(run.calls)
    while todo:
        call = todo.pop(0)
        task = run.tasks[call.task]
        if call.kind not in {"choose", "expand", "gather"} or not task.runs_on_master:
            continue
        given = {
            "choose": Chose(call.task, task.n, (random.choice(["x", "y"]),), run.round),
            "expand": Expanded(call.task, task.n, random.randint(1, 3), run.round),
            "gather": Ended(call.task, task.n, Outcome.SUCCESS, run.round),
        }
        run = advance(plan, run, [given[call.kind]], now)
        todo += run.calls
    return run


def a_held_event(plan, run, random, step):
    held = [name for name, task in run.tasks.items() if task.runs_on_master and plan.get_kind(name) != "map"]
    if held and random.random() < 0.5:
        name = random.choice(held)
        n = run.tasks[name].n
        if run.state is RunState.READY_PAUSE:
            return ChildPaused(name, n, run.round)
        return Ended(name, n, random.choice([Outcome.SUCCESS, Outcome.SUCCESS, Outcome.FATAL]), run.round)
    if step >= 150 and run.state in {RunState.PAUSED, RunState.READY_PAUSE}:
        return Resume()
    if step < 150 and random.random() < 0.15:
        return a_command(run, random)
    removing = set(run.tasks_to_withdraw)
    possible = [Wake()]
    for name, task in run.tasks.items():
        if task.state is TaskState.SUBMITTED:
            possible.append(Claimed(name, task.n, run.round))
            possible += [Removed(name, task.n, run.round)] * (name in removing)
        elif task.state is TaskState.RUNNING and not task.runs_on_master:
            killed = name in run.tasks_to_kill
            outcome = Outcome.KILLED if killed else random.choice([Outcome.SUCCESS, Outcome.FAILURE])
            possible += [Ended(name, task.n, outcome, run.round)] * 3
    return random.choice(possible[1:] or possible)


def a_command(run, random):
    """One that a person may give, of any task."""
    name = random.choice(list(run.tasks))
    of_task = [ForceSuccess(name), ForceStart(name), ChildForced(name, run.round)]
    return random.choice([Pause(), Resume(), Stop(), Recover(), Rerun(), *of_task])
