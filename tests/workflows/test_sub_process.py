"""Runs inside of runs: what a child is, what its parent hears of it, and what becomes of both when somebody dies."""

import sqlalchemy as sa

from latchwork_workflows.db import definitions
from latchwork_workflows.db.tables import workflow_run
from latchwork_workflows.state import Outcome
from patience import eventually
from workflows.hands import a_workflow


def a_parent(child="child", **fields):
    tasks = {"before": [], "sub": {"type": "sub_process", "params": {"workflow": child, **fields}, "after": ["before"]}}
    return a_workflow("parent", tasks={**tasks, "behind": ["sub"]})


def the_child(stage, parent):
    """The child of the only sub-process of a run."""
    with stage.database.read() as connection:
        chosen = sa.select(workflow_run.c.id).where(workflow_run.c.parent_task == stage.rows(parent)["sub"])
        return connection.execute(chosen).scalar_one_or_none()


def begun(stage, hand, child, parent=None):
    """A parent whose child is at work."""
    stage.apply(child)
    made = stage.start(stage.apply(parent or a_parent()))
    hand.end(hand.wait("before"), outputs={"day": "monday"})
    return made, eventually(lambda: the_child(stage, made))


def test_the_outputs_of_a_child_are_those_of_its_task_and_values_of_the_parent_its_parameters(stage):
    hand = stage.hand()
    child = a_workflow("child", tasks={"a": [], "b": ["a"]}, params={"day": "none", "where": "here"})
    with stage.master():
        made, inner = begun(stage, hand, child, a_parent(params={"day": "${before.day}"}))
        a = hand.wait("a")
        assert hand.spec(a).values["day"] == "monday"
        assert hand.spec(a).values["where"] == "here"
        hand.end(a, outputs={"rows": 1, "files": ["x"]})
        hand.end(hand.wait("b"), outputs={"rows": 2})
        behind = hand.wait("behind")
        assert stage.state(inner) == "success"
        assert hand.spec(behind).values["rows"] == 2
        assert hand.spec(behind).values["files"] == ["x"]
        hand.end(behind)
        stage.until(made, "success")
        eventually(lambda: stage.left() == [])


def test_a_pause_and_a_resume_of_the_parent_are_those_of_the_child(stage):
    hand = stage.hand()
    with stage.master():
        made, inner = begun(stage, hand, a_workflow("child", tasks={"a": [], "b": ["a"]}))
        a = hand.wait("a")
        stage.until_task(inner, a="running")
        stage.send("pause", made)
        stage.until(inner, "ready_pause")
        assert stage.state(made) == "ready_pause"
        hand.end(a)
        stage.until(made, "paused")
        assert stage.state(inner) == "paused"
        stage.send("resume", made)
        hand.end(hand.wait("b"))
        hand.end(hand.wait("behind"))
        stage.until(made, "success")
    assert stage.states(made)["sub"] == "success"


def test_a_stop_of_the_parent_ends_what_the_child_runs(stage):
    hand = stage.hand()
    with stage.master():
        made, inner = begun(stage, hand, a_workflow("child"))
        a = hand.wait("a")
        stage.until_task(inner, a="running")
        stage.send("stop", made)
        eventually(lambda: stage.is_cancelled(a))
        hand.end(a, Outcome.KILLED)
        stage.until(made, "stopped")
    assert stage.state(inner) == "stopped"
    assert stage.states(made)["sub"] == "killed"


def test_a_recovery_of_the_parent_runs_only_what_failed_in_the_child(stage):
    """Where a whole child ran again, its tasks that had succeeded wrote twice: DolphinScheduler #15583."""
    hand = stage.hand()
    child = a_workflow("child", tasks={"good": [], "bad": [], "last": ["good", "bad"]})
    with stage.master():
        made, inner = begun(stage, hand, child)
        both = hand.wait("good", "bad")
        hand.end(both["good"], outputs={"kept": 1})
        hand.end(both["bad"], Outcome.FAILURE)
        stage.until(made, "failure")
        assert stage.states(inner) == {"good": "success", "bad": "failure", "last": "waiting"}
        stage.send("recover", made)
        hand.end(hand.wait("bad"))
        last = hand.wait("last")
        assert the_child(stage, made) == inner
        assert hand.spec(last).values["kept"] == 1
        hand.end(last)
        hand.end(hand.wait("behind"))
        stage.until(made, "success")
    assert stage.known(inner).tasks["good"].n == 1
    assert stage.known(inner).tasks["bad"].n == 2


def test_a_master_that_comes_after_a_crash_adopts_the_child_and_makes_no_other(stage):
    """A parent that was taken over started its child again: DolphinScheduler #16767."""
    hand = stage.hand()
    with stage.master():
        made, inner = begun(stage, hand, a_workflow("child", tasks={"a": []}))
        a = hand.wait("a")
    with stage.master():
        hand.end(a)
        hand.end(hand.wait("behind"))
        stage.until(made, "success")
    assert the_child(stage, made) == inner
    assert stage.runs() == 2
    assert stage.known(inner).tasks["a"].n == 1


def test_the_child_of_a_parent_that_has_nothing_else_to_do_is_taken_over_too(stage):
    """Only runs without a parent were taken over, and the child of one that was well stood still: #17350."""
    hand, dying = stage.hand(), stage.hand("dying")
    with stage.master():
        made, inner = begun(stage, hand, a_workflow("child", tasks={"a": []}))
        dying.wait("a")
        stage.until_task(inner, a="running")
    stage.lose(dying)
    with stage.master():
        eventually(lambda: "failover" in stage.events(inner))
        hand.end(hand.wait("a"))
        hand.end(hand.wait("behind"))
        stage.until(made, "success")


def test_a_master_that_dies_anywhere_in_the_transaction_leaves_one_child_and_a_parent_that_hears_of_it(
    stage, monkeypatch
):
    version = stage.apply(a_workflow("parent", tasks={"sub": {"type": "sub_process", "params": {"workflow": "child"}}}))
    stage.apply(a_workflow("child", tasks={"a": []}))
    hand = stage.hand()
    for step in range(5):
        with monkeypatch.context() as patch:
            stage.fail_at(patch, step)
            with stage.master():
                number = stage.send("start", code=version.code, version=version.number)
                eventually(lambda number=number: stage.failures or stage.command(number).run_id)
        with stage.master():
            made = eventually(lambda number=number: stage.command(number).run_id)
            hand.end(hand.wait("a"))
            stage.until(made, "success")
        assert stage.runs() == 2 * (step + 1)


def test_answers_that_are_lost_change_nothing_for_a_parent_and_its_child(stage, monkeypatch):
    hand = stage.hand()
    with stage.master():
        lost = stage.lose_answers(monkeypatch, every=3)
        made, inner = begun(stage, hand, a_workflow("child", tasks={"a": [], "b": ["a"]}))
        for name in ("a", "b", "behind"):
            hand.end(hand.wait(name))
        stage.until(made, "success")
    assert lost
    assert stage.runs() == 2
    assert stage.state(inner) == "success"


def test_a_child_that_cannot_be_started_fails_its_task_with_the_reason(stage):
    tasks = {name: {"type": "sub_process", "params": {"workflow": of}} for name, of in [("x", "nobody"), ("y", "off")]}
    tasks["z"] = {"type": "sub_process", "params": {"workflow": "child", "params": {"colour": "red"}}}
    tasks["w"] = {"type": "sub_process", "params": {"workflow": "child", "params": {"day": "${lost}"}}, "after": ["v"]}
    version = stage.apply(a_workflow("parent", tasks={"v": {"enabled": False}, **tasks}))
    stage.apply(a_workflow("off"), online=False)
    stage.apply(a_workflow("child", params={"day": "x"}))
    with stage.master():
        made = stage.start(version)
        stage.until(made, "failure")
    why = " ".join(error for *_, error in stage.attempts())
    assert "there is no workflow 'nobody'" in why
    assert "off is offline" in why
    assert "child has no parameter 'colour'; it has day" in why
    assert "a parameter refers to 'lost'" in why


def test_a_workflow_that_comes_to_start_itself_fails_at_the_deepest_run(stage, monkeypatch):
    monkeypatch.setattr("latchwork_workflows.master.master_tasks.MAX_DEPTH", 5)
    version = stage.apply(a_workflow("one", tasks={"sub": {"type": "sub_process", "params": {"workflow": "two"}}}))
    stage.apply(a_workflow("two", tasks={"sub": {"type": "sub_process", "params": {"workflow": "one"}}}))
    with stage.master():
        made = stage.start(version)
        stage.until(made, "failure")
    assert stage.runs() == 6
    assert any("are nested here" in (error or "") for *_, error in stage.attempts())


def test_a_child_goes_on_by_itself_only_while_its_parent_waits_for_it(stage):
    hand = stage.hand()
    with stage.master():
        made, inner = begun(stage, hand, a_workflow("child", tasks={"a": []}))
        hand.end(hand.wait("a"), Outcome.FAILURE)
        stage.until(made, "failure")
        for command in ("recover", "rerun"):
            number = stage.send(command, inner)
            eventually(lambda number=number: stage.command(number).done_at)
            assert f"is a part of run {made}; {command} that run" in stage.command(number).error
        stage.send("force_success", inner, task="a")
        eventually(lambda: stage.states(made)["sub"] == "forced_success")
        stage.send("recover", made)
        hand.end(hand.wait("behind"))
        stage.until(made, "success")


def test_a_child_that_somebody_paused_is_waited_for_until_somebody_resumes_it(stage):
    hand = stage.hand()
    with stage.master():
        made, inner = begun(stage, hand, a_workflow("child", tasks={"a": [], "b": ["a"]}))
        a = hand.wait("a")
        stage.until_task(inner, a="running")
        stage.send("pause", inner)
        stage.until(inner, "ready_pause")
        hand.end(a)
        stage.until(inner, "paused")
        assert stage.states(made)["sub"] == "running"
        stage.send("resume", inner)
        hand.end(hand.wait("b"))
        hand.end(hand.wait("behind"))
        stage.until(made, "success")


def test_a_rerun_of_the_parent_has_a_child_of_its_own(stage):
    hand = stage.hand()
    with stage.master():
        made, inner = begun(stage, hand, a_workflow("child", tasks={"a": []}))
        for name in ("a", "behind"):
            hand.end(hand.wait(name))
        stage.until(made, "success")
        stage.send("rerun", made)
        for name in ("before", "a", "behind"):
            hand.end(hand.wait(name))
        stage.until(made, "success")
        assert the_child(stage, made) != inner
    assert stage.runs() == 3


def test_a_defect_of_the_parent_ends_its_child(stage, monkeypatch):
    hand = stage.hand()
    with stage.master() as run:
        made, inner = begun(stage, hand, a_workflow("child", tasks={"a": []}))
        a = hand.wait("a")
        stage.until_task(inner, a="running")
        code = stage_code(stage, "parent")
        broken = run._tools.plans._known.pop((code, 1))
        load = definitions.load_definition

        def refuse(connection, of, version):
            if of == code:
                raise ValueError("from another time")
            return load(connection, of, version)

        monkeypatch.setattr(definitions, "load_definition", refuse)
        assert broken.number == 1
        stage.send("wake", made)  # it is read, which fails
        stage.until(made, "failure")
        eventually(lambda: stage.is_cancelled(a))
        hand.end(a, Outcome.KILLED)
        stage.until(inner, "stopped")
    assert "error" in stage.events(made)


def stage_code(stage, name):
    with stage.database.read() as connection:
        return definitions.find_workflow(connection, name)[0]
