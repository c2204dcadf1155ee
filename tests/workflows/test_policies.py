"""What a failure does to the others; retries, recovery and rerun; pause and stop: with a master and a worker."""

import time

from latchwork_workflows.state import Outcome
from patience import eventually
from workflows.hands import a_workflow

SIDE_BY_SIDE = {"bad": [], "good": [], "after": ["good"], "never": ["bad"]}


# A failure


def test_with_continue_the_others_finish_and_the_run_fails(stage):
    version = stage.apply(a_workflow(tasks=SIDE_BY_SIDE, on_failure="continue"))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        got = hand.wait("bad", "good")
        hand.end(got["bad"], Outcome.FAILURE)
        stage.until_task(made, bad="failure")
        hand.end(got["good"])
        hand.end(hand.wait("after"))
        stage.until(made, "failure")
    assert stage.states(made) == {"bad": "failure", "good": "success", "after": "success", "never": "waiting"}


def test_with_end_those_at_work_are_killed_and_the_run_fails(stage):
    version = stage.apply(a_workflow(tasks={**SIDE_BY_SIDE, "queued": []}, on_failure="end"))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        eventually(lambda: hand.backlog.size("default") == 3)
        bad, good = (hand.take(limit=1) for _ in range(2))
        claims = {**bad, **good}
        assert sorted(claims) == ["bad", "good"]
        stage.until_task(made, bad="running", good="running")
        hand.end(claims["bad"], Outcome.FAILURE)
        eventually(lambda: stage.is_cancelled(claims["good"]))
        stage.until_task(made, queued="killed")
        hand.end(claims["good"], Outcome.KILLED)
        stage.until(made, "failure")
        eventually(lambda: stage.left() == [])
    killed = {"bad": "failure", "good": "killed", "after": "waiting", "never": "waiting", "queued": "killed"}
    assert stage.states(made) == killed


# Retries, recovery, rerun


def test_a_failure_waits_its_interval_and_is_tried_so_often(stage):
    clock = [1_000.0]
    version = stage.apply(a_workflow(tasks={"a": {"retries": 2, "retry_interval_s": 100}}))
    hand = stage.hand()
    with stage.master(now=lambda: clock[0]):
        made = stage.start(version)
        for _ in range(2):
            hand.end(hand.wait("a"), Outcome.FAILURE)
            stage.until_task(made, a="retry_wait")
            assert hand.take() == {}
            clock[0] += 101
            stage.poke()
        hand.end(hand.wait("a"), Outcome.FAILURE)
        stage.until(made, "failure")
    assert [(n, kind) for n, kind, *_ in stage.attempts()] == [(1, "first"), (2, "retry"), (3, "retry")]


def test_a_delay_begins_when_all_before_it_is_done_and_outlives_its_master(stage):
    version = stage.apply(a_workflow(tasks={"a": [], "b": {"after": ["a"], "delay_s": 2.0}}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("a"))
        ended = time.time()
        eventually(lambda: stage.states(made)["a"] == "success")
        assert hand.take() == {}
    with stage.master():
        claim = hand.wait("b")
        assert time.time() - ended > 1.8
        hand.end(claim)
        stage.until(made, "success")


def test_a_recovery_runs_what_failed_and_keeps_what_succeeded(stage):
    version = stage.apply(a_workflow(tasks={"a": [], "b": ["a"], "c": ["b"]}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("a"), outputs={"rows": 5})
        hand.end(hand.wait("b"), Outcome.FAILURE)
        stage.until(made, "failure")
        stage.send("recover", made)
        again = hand.wait("b")
        assert hand.spec(again).values["rows"] == 5
        hand.end(again)
        hand.end(hand.wait("c"))
        stage.until(made, "success")
    assert len(stage.attempts()) == 4
    assert stage.known(made).round == 1


def test_a_rerun_is_another_run_of_the_same_run_and_the_old_attempts_stay(stage):
    version = stage.apply(a_workflow(tasks={"a": []}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("a"), Outcome.FAILURE)
        stage.until(made, "failure")
        stage.send("rerun", made)
        hand.end(hand.wait("a"))
        stage.until(made, "success")
    assert stage.known(made).round == 2
    assert [outcome for _, _, outcome, *_ in stage.attempts()] == ["failure", "success"]
    assert stage.runs() == 1


def test_a_task_that_failed_can_be_forced_to_success_and_a_queued_one_to_start(stage):
    version = stage.apply(a_workflow(tasks={"a": [], "b": ["a"], "limited": {"pool": "few"}}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        hand.end(hand.wait("a"), Outcome.FAILURE)
        stage.until_task(made, a="failure", limited="submitted")
        stage.send("force_start", made, task="limited")
        hand.end(hand.wait("limited"))
        stage.until(made, "failure")
        stage.send("force_success", made, task="a")
        eventually(lambda: not stage.commands_open())
        assert stage.states(made)["a"] == "forced_success"
        stage.send("recover", made)
        hand.end(hand.wait("b"))
        stage.until(made, "success")
    assert sorted(n for n, *_ in stage.attempts()) == [1, 1, 2]  # the second is the one started by force


# Pause and stop


def test_a_pause_lets_running_tasks_end_and_takes_queued_ones_back(stage):
    version = stage.apply(a_workflow(tasks={"a": [], "queued": [], "after": ["a"]}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        eventually(lambda: hand.backlog.size("default") == 2)
        claim = hand.take(limit=1)["a"]
        stage.until_task(made, a="running")
        stage.send("pause", made)
        stage.until_task(made, queued="paused")
        assert stage.state(made) == "ready_pause"
        assert not stage.is_cancelled(claim)
        hand.end(claim)
        stage.until(made, "paused")
        assert hand.take() == {}
        stage.send("resume", made)
        got = hand.wait("queued", "after")
        for each in got.values():
            hand.end(each)
        stage.until(made, "success")


def test_a_pause_and_a_resume_before_anything_was_put_or_taken_back_lose_no_task(stage):
    version = stage.apply(a_workflow(tasks={"a": []}))
    start = stage.send("start", code=version.code, version=1)
    with stage.master():
        made = eventually(lambda: stage.command(start).run_id)
    for kind in ("pause", "resume", "pause", "resume"):
        stage.send(kind, made)
    hand = stage.hand()
    with stage.master():
        hand.end(hand.wait("a"))
        stage.until(made, "success")
        eventually(lambda: stage.left() == [])


def test_a_stop_kills_what_runs_and_takes_back_the_rest(stage):
    version = stage.apply(a_workflow(tasks={"a": [], "queued": [], "after": ["a"]}))
    hand = stage.hand()
    with stage.master():
        made = stage.start(version)
        eventually(lambda: hand.backlog.size("default") == 2)
        claim = hand.take(limit=1)["a"]
        stage.until_task(made, a="running")
        stage.send("stop", made)
        eventually(lambda: stage.is_cancelled(claim))
        assert stage.state(made) == "ready_stop"
        hand.end(claim, Outcome.KILLED)
        stage.until(made, "stopped")
        eventually(lambda: stage.left() == [])
    assert stage.states(made) == {"a": "killed", "queued": "killed", "after": "waiting"}


def test_a_master_has_nothing_in_mind_of_what_is_over(stage):
    version = stage.apply(a_workflow(tasks={"a": [], "queued": [], "after": ["a"]}))
    hand = stage.hand()
    with stage.master() as run:
        for _ in range(3):
            made = stage.start(version)
            eventually(lambda: hand.backlog.size("default") == 2)
            claim = hand.take(limit=1)["a"]
            stage.until_task(made, a="running")
            stage.send("stop", made)
            eventually(lambda claim=claim: stage.is_cancelled(claim))
            hand.end(claim, Outcome.KILLED)
            stage.until(made, "stopped")
        eventually(lambda: stage.left() == [])
        held = {**vars(run), **vars(run._cache)}
        eventually(lambda: not any(each for each in held.values() if isinstance(each, dict | set)))
        assert not run._cancelled


def test_a_task_that_is_stopped_while_its_worker_dies_is_taken_by_nobody(stage):
    version = stage.apply(a_workflow(tasks={"a": []}))
    first, second = stage.hand("first"), stage.hand("second")
    with stage.master():
        made = stage.start(version)
        claim = first.wait("a")
        stage.until_task(made, a="running")
        stage.send("stop", made)
        eventually(lambda: stage.is_cancelled(claim))
        stage.lose(first)
        assert second.take() == {}
        stage.until(made, "stopped")
        assert second.take() == {}
        eventually(lambda: stage.left() == [])
    assert stage.states(made) == {"a": "killed"}
