"""The referee of executors: each rule has a log that breaks it, and one that does not."""

from __future__ import annotations

import pytest

from trials.judges.executor import judge
from trials.judges.faults import Fault

TASK = "7-1"


def event(kind, time, pid=1, **more):
    return {"event": kind, "time": time, "pid": pid, "node": "x", "task": TASK, **more}


def submitted(time=0.0, pid=7, **more):
    return event("submitted", time, pid, **{"copies": 1, **more})


def start(time, pid=1, token=10, sid="s"):
    return event("start", time, pid, token=token, sid=sid)


def end(time, pid=1, token=10):
    return event("end", time, pid, token=token)


def over(time, how="value"):
    return event("over", time, 7, how=how, what="")


def violations(*events, faults=(), ended_at=100.0):
    return judge(events, faults, ended_at=ended_at).violations


FINE = (submitted(), start(1.0), end(2.0), over(2.1))


def test_a_task_that_ran_once_and_has_its_result_is_fine():
    verdict = judge(FINE, [], ended_at=9.0)
    assert (verdict.violations, verdict.tasks, verdict.runs, verdict.results) == ([], 1, 1, 1)


def test_a_second_result_is_a_violation():
    assert "over 2 times" in violations(*FINE, over(3.0))[0]


def test_a_task_without_an_end_is_a_violation_unless_its_submitter_was_killed():
    assert "never over" in violations(submitted(), start(1.0), end(2.0))[0]
    assert violations(submitted(), start(1.0), end(2.0), faults=[Fault("kill submitter", 3.0, 3.0, 7)]) == []


@pytest.mark.parametrize("how", ["WrongValue", "TaskDied", "RemoteError"])
def test_an_end_that_no_fault_explains_is_a_violation(how):
    assert how in violations(submitted(), over(1.0, how))[0]


def test_an_end_by_a_lost_session_is_counted():
    assert judge([submitted(), over(1.0, "SessionLost")], [], ended_at=9.0).lost == 1


def test_a_task_that_was_cancelled_while_it_was_queued_never_runs():
    cancelled = event("cancelled", 1.0, 7, interrupt=False)
    assert violations(submitted(), cancelled, over(1.1, "cancelled")) == []
    late = violations(submitted(), cancelled, over(1.1, "cancelled"), start(5.0), end(6.0))
    assert "was cancelled while it was queued" in late[0]
    during = violations(submitted(), start(0.5), cancelled, over(1.1, "cancelled"), end(6.0))
    assert "was cancelled while it was queued" in during[0]


def test_what_ran_on_a_node_that_died_may_be_queued_again_and_cancelled():
    died = Fault("kill worker", 0.8, 0.8, 1)
    log = (submitted(), start(0.5), event("cancelled", 3.0, 7, interrupt=False), over(3.1, "cancelled"))
    assert violations(*log, faults=[died]) == []


def test_an_interrupted_task_may_have_run():
    log = (submitted(), start(0.5), event("cancelled", 1.0, 7, interrupt=True), over(1.1, "cancelled"), end(1.2))
    assert violations(*log) == []


def test_nothing_begins_after_its_submitter_was_seen_dead():
    gone = {"event": "gone", "time": 2.0, "pid": 0, "sid": "s"}
    killed = [Fault("kill submitter", 0.1, 0.1, 7)]
    assert violations(submitted(), gone, start(2.5), end(3.0), faults=killed) == []
    assert "seen dead" in violations(submitted(), gone, start(3.5), end(4.0), faults=killed)[0]
    frozen = [*killed, Fault("freeze worker", 1.9, 3.4, 1)]
    assert violations(submitted(), gone, start(3.5), end(4.0), faults=frozen) == []


def test_two_runs_at_a_time_are_a_violation_unless_the_first_was_held_up():
    log = (submitted(), start(1.0), start(2.0, 2, 20), end(3.0), end(4.0, 2, 20), over(4.1))
    assert "twice at a time" in violations(*log)[0]
    verdict = judge(log, [Fault("freeze worker", 1.1, 2.9, 1)], ended_at=9.0)
    assert (verdict.violations, verdict.forgiven, verdict.again) == ([], 1, 1)


def test_copies_run_at_a_time():
    assert violations(submitted(copies=2), start(1.0), start(1.1, 2, 20), end(2.0), end(2.1, 2, 20), over(2.2)) == []


def test_a_write_of_an_earlier_run_after_the_later_one_had_the_task_is_never_forgiven():
    log = (submitted(), start(1.0), start(2.0, 2, 20), end(3.0), end(4.0, 2, 20), over(4.1))
    frozen = [Fault("freeze worker", 1.1, 2.9, 1)]
    assert "wrote at 21" in violations(*log, event("wrote", 2.95, 1, token=10, commit=21), faults=frozen)[0]
    assert violations(*log, event("wrote", 1.05, 1, token=10, commit=11), faults=frozen) == []


def test_tokens_grow_from_run_to_run():
    log = (submitted(), start(1.0, 1, 20), end(1.5, 1, 20), start(2.0, 2, 10), end(3.0, 2, 10), over(3.1))
    assert "older token" in violations(*log)[0]
    assert (
        "one claim" in violations(*log[:2], event("end", 1.5, 1, token=20), start(2.0, 1, 20), end(3.0), over(3.1))[0]
    )


def test_a_frozen_process_may_begin_with_an_older_token_but_write_nothing():
    log = (submitted(), start(1.0, 1, 20), end(1.5, 1, 20), start(2.0, 2, 10), end(3.0, 2, 10), over(3.1))
    frozen = [Fault("freeze worker", 0.5, 1.9, 2)]
    assert violations(*log, faults=frozen) == []
    assert "wrote at 21" in violations(*log, event("wrote", 2.5, 2, token=10, commit=21), faults=frozen)[0]
    assert "older token" in violations(*log, faults=[Fault("freeze worker", 0.5, 1.9, 1)])[0]
