"""What happens to an instance, as stories that read like a specification, and what holds in all of them."""

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
    Instance,
    InstanceState,
    Lost,
    OnFailure,
    Outcome,
    Pause,
    Plan,
    Recover,
    Removed,
    Rerun,
    Resume,
    Rule,
    Start,
    Stop,
    TaskState,
    Wake,
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
        rules[f"t{index}"] = Rule(
            tuple(before),
            retries=draw(st.integers(0, 1)),
            retry_interval_s=draw(st.sampled_from([0, 5])),
            delay_s=draw(st.sampled_from([0, 0, 3])),
            max_queued_s=draw(st.sampled_from([None, None, 3])),
            enabled=draw(st.integers(0, 5)) > 0,
        )
    return Plan(rules, on_failure=draw(st.sampled_from(OnFailure)), timeout_s=draw(st.sampled_from([None, 30])))


@given(plans(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_every_history_ends_in_a_final_state_and_no_task_starts_before_those_it_waits_for(plan, random):
    now, instance = 0.0, advance(plan, Instance(), [Start()], 0.0)
    for step in range(400):
        now += random.choice([0, 1, 4]) if step < 200 else 4
        before = instance
        event = an_event(instance, random, step)
        try:
            instance = advance(plan, instance, [event], now)
        except WrongState:
            continue
        check(plan, before, instance, now)
        if step > 100 and instance.state in {InstanceState.SUCCESS, InstanceState.FAILURE, InstanceState.STOPPED}:
            return
    raise AssertionError(instance)


def an_event(instance, random, step):
    """One that may happen now; late in the story no commands, so that it ends."""
    if step < 100 and random.random() < 0.1:
        return random.choice([Pause, Resume, Stop, Recover, Rerun])()
    if step >= 100 and instance.state in {InstanceState.PAUSED, InstanceState.READY_PAUSE}:
        return Resume()
    removing = set(instance.to_remove)
    possible = [Wake()]
    for name, task in instance.tasks.items():
        if task.state is TaskState.SUBMITTED:
            possible.append(Claimed(name, task.n, instance.run))
            possible += [Removed(name, task.n, instance.run)] * (name in removing)
        if task.state is TaskState.RUNNING:
            possible += [Ended(name, task.n, random.choice(list(Outcome)[:2]), instance.run)] * 3
            possible += [Lost(name, task.n, instance.run)] * (step < 200)
            if name in instance.to_kill:
                possible.append(Ended(name, task.n, Outcome.KILLED, instance.run))
    if step >= 200:  # whatever is chosen, something goes on
        return possible[1 + step % (len(possible) - 1)] if len(possible) > 1 else Wake()
    possible.append(Ended(random.choice(list(instance.tasks)), 1, Outcome.FAILURE, max(1, instance.run - 1)))
    return random.choice(possible)


def check(plan, before, instance, now):
    done = {TaskState.SUCCESS, TaskState.SKIPPED, TaskState.FORCED_SUCCESS}
    for name in instance.changed_since(before):
        task = instance.tasks[name]
        was = before.tasks.get(name, task)
        if task.is_overdue and was.n == task.n:
            assert now >= task.until
        elif task.state is TaskState.SUBMITTED and was.state is not TaskState.RUNNING:
            assert all(instance.tasks[each].state in done for each in plan.rules[name].after)
            assert instance.state is InstanceState.RUNNING
            assert not instance.ending
            assert task.n == before.tasks[name].n + 1 or instance.run > before.run
    if instance.state in {InstanceState.SUCCESS, InstanceState.FAILURE, InstanceState.STOPPED, InstanceState.PAUSED}:
        assert not any(task.state in {TaskState.SUBMITTED, TaskState.RUNNING} for task in instance.tasks.values())
    if instance.state is InstanceState.SUCCESS:
        assert all(task.state in done for task in instance.tasks.values())
    again = advance(plan, instance, [], now)
    assert (again.state, again.tasks, again.facts) == (instance.state, instance.tasks, ())  # settled: nothing follows


@st.composite
def held_plans(draw):
    """Plans with tasks that the master holds; two forks, the last tasks of which they share."""
    rules = {}
    for index in range(draw(st.integers(1, 4))):
        before = tuple(f"t{each}" for each in range(index) if draw(st.booleans()))
        kind = draw(st.sampled_from(["", "sub_process", "dependent"]))
        maps = kind != "dependent" and draw(st.booleans())
        rules[f"t{index}"] = Rule(before, kind=kind, maps=maps, map_parallel=draw(st.sampled_from([None, 1])))
    for fork, before in {"fork": tuple(rules)[-1], "other": draw(st.sampled_from(tuple(rules)))}.items():
        kind = draw(st.sampled_from(["conditions", "switch"]))
        when = conditions.Ended(before)
        rules[fork] = Rule((before,), kind=kind, heads=("x", "y"), branches=(("x",), ("y",)), when=when)
    rules |= {"x": Rule(("fork", "other")), "y": Rule(draw(st.permutations(("fork", "other"))))}
    rules |= {"behind": Rule(("y",)), "join": Rule(("x", "behind"))}
    return Plan(rules, on_failure=draw(st.sampled_from(OnFailure)))


@given(held_plans(), st.randoms(use_true_random=False))
@settings(max_examples=20_000 if LONG else 40, deadline=None)
def test_every_history_with_held_tasks_ends_and_no_worker_is_asked_about_them(plan, random):
    now, instance = 0.0, advance(plan, Instance(), [Start()], 0.0)
    for step in range(600):
        now += random.choice([0, 1])
        instance = answered(plan, instance, random, now)
        check_held(plan, instance)
        if step > 150 and instance.state in ENDED:
            return
        try:
            instance = advance(plan, instance, [a_held_event(plan, instance, random, step)], now)
        except WrongState:
            continue
        again = advance(plan, instance, [], now)
        assert (again.state, again.tasks, again.facts) == (instance.state, instance.tasks, ())
    raise AssertionError(instance)


ENDED = {InstanceState.SUCCESS, InstanceState.FAILURE, InstanceState.STOPPED}


def check_held(plan, instance):
    assert not any(instance.tasks[name].held for name in (*instance.to_remove, *instance.to_kill))
    assert all(plan.kind(name) for name, task in instance.tasks.items() if task.held)
    states = {task.state for task in instance.tasks.values()}
    if instance.state in ENDED | {InstanceState.PAUSED}:
        assert not states & {TaskState.SUBMITTED, TaskState.RUNNING}
    if instance.state is InstanceState.SUCCESS:
        assert TaskState.WAITING not in states
    for head in set("xy") & instance.tasks.keys():
        forks = [instance.tasks[each] for each in ("fork", "other")]
        if instance.tasks[head].cut:
            assert all(fork.cut or head not in fork.chosen for fork in forks)
        elif instance.tasks[head].state in {TaskState.SUBMITTED, TaskState.RUNNING, TaskState.SUCCESS}:
            assert any(fork.chosen is None or head in fork.chosen for fork in forks)


def answered(plan, instance, random, now):
    """What a master does at once: choose, expand and gather, one answer after the other."""
    todo = list(instance.calls)
    while todo:
        call = todo.pop(0)
        task = instance.tasks[call.task]
        if call.kind not in {"choose", "expand", "gather"} or not task.held:
            continue
        given = {
            "choose": Chose(call.task, task.n, (random.choice(["x", "y"]),), instance.run),
            "expand": Expanded(call.task, task.n, random.randint(1, 3), instance.run),
            "gather": Ended(call.task, task.n, Outcome.SUCCESS, instance.run),
        }
        instance = advance(plan, instance, [given[call.kind]], now)
        todo += instance.calls
    return instance


def a_held_event(plan, instance, random, step):
    held = [name for name, task in instance.tasks.items() if task.held and plan.kind(name) != "map"]
    if held and random.random() < 0.5:
        name = random.choice(held)
        n = instance.tasks[name].n
        if instance.state is InstanceState.READY_PAUSE:
            return ChildPaused(name, n, instance.run)
        return Ended(name, n, random.choice([Outcome.SUCCESS, Outcome.SUCCESS, Outcome.FATAL]), instance.run)
    if step >= 150 and instance.state in {InstanceState.PAUSED, InstanceState.READY_PAUSE}:
        return Resume()
    if step < 150 and random.random() < 0.15:
        return a_command(instance, random)
    removing = set(instance.to_remove)
    possible = [Wake()]
    for name, task in instance.tasks.items():
        if task.state is TaskState.SUBMITTED:
            possible.append(Claimed(name, task.n, instance.run))
            possible += [Removed(name, task.n, instance.run)] * (name in removing)
        elif task.state is TaskState.RUNNING and not task.held:
            killed = name in instance.to_kill
            outcome = Outcome.KILLED if killed else random.choice([Outcome.SUCCESS, Outcome.FAILURE])
            possible += [Ended(name, task.n, outcome, instance.run)] * 3
    return random.choice(possible[1:] or possible)


def a_command(instance, random):
    """One that a person may give, of any task."""
    name = random.choice(list(instance.tasks))
    of_task = [ForceSuccess(name), ForceStart(name), ChildForced(name, instance.run)]
    return random.choice([Pause(), Resume(), Stop(), Recover(), Rerun(), *of_task])
