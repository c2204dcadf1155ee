"""A clock that is set back, or that is another master's: who waits, waits no longer than it was told."""

import pytest

from latchwork_workflows.model.definition import build_plan
from latchwork_workflows.state import Claimed, Ended, Outcome, Start, TaskState, advance
from latchwork_workflows.state.records import WorkflowRun
from patience import eventually
from workflows.hands import a_workflow

HOUR_S = 3600.0


@pytest.mark.parametrize("waits", ["retry_wait", "delayed"])
@pytest.mark.parametrize("is_told", ["while it runs", "by the next master"])
def test_a_clock_that_goes_back_an_hour_makes_nobody_wait_longer_than_it_was_told(stage, waits, is_told):
    clock = [100_000.0]
    rule = {"retries": 2, "retry_interval_s": 100} if waits == "retry_wait" else {"delay_s": 100.0}
    version = stage.apply(a_workflow(tasks={"a": rule}))
    hand = stage.hand()

    def fails_or_waits():
        made = stage.start(version)
        if waits == "retry_wait":
            hand.end(hand.wait("a"), Outcome.FAILURE)
        stage.until_task(made, a=waits)
        return made

    with stage.master(now=lambda: clock[0]):
        made = fails_or_waits()
        if is_told == "while it runs":
            clock[0] -= HOUR_S
            stage.poke()
            eventually(lambda: stage.known(made).wake_at == clock[0] + 100)
            assert hand.take() == {}
            clock[0] += 101
            stage.poke()
            hand.end(hand.wait("a"))
            stage.until(made, "success")
            return
    clock[0] -= HOUR_S
    with stage.master(now=lambda: clock[0]):
        eventually(lambda: stage.known(made).wake_at == clock[0] + 100)
        clock[0] += 101
        stage.poke()
        hand.end(hand.wait("a"))
        stage.until(made, "success")


def retried(now):
    found = a_workflow(tasks={"a": {"retries": 1, "retry_interval_s": 60}})
    plan = build_plan(found.definition, found.order)
    known = advance(plan, WorkflowRun(), [Start()], now)
    return plan, advance(plan, known, [Claimed("a", 1), Ended("a", 1, Outcome.FAILURE)], now)


def test_clocks_of_two_masters_that_differ_by_seconds_change_nothing():
    plan, known = retried(1_000.0)
    assert known.tasks["a"].state is TaskState.RETRY_WAIT
    assert advance(plan, known, [], 996.0).tasks["a"].wake_at == 1_060.0
    assert advance(plan, known, [], 900.0).tasks["a"].wake_at == 960.0
