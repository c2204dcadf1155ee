"""The referee of workflows: each rule has facts that break it, and the same facts in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trials.judges.workflows import Attempt, Command, Facts, Fire, Line, Run, Task, judge, line_of

LINES = (
    Line("begin", 1, "a", 1, 10, 1.0),
    Line("fail", 1, "a", 1, 10, 2.0),
    Line("begin", 1, "a", 2, 11, 3.0),
    Line("end", 1, "a", 2, 11, 4.0),
    Line("begin", 1, "b", 1, 12, 5.0),
    Line("end", 1, "b", 1, 12, 6.0),
)
FINE = Facts(
    lines=LINES,
    fires=(Fire("flow", 60.0, 5),),
    commands=(Command(5, "timer", 1, None, True, None), Command(6, "start", 2, "k", True, None)),
    runs=(Run(1, "flow", "success", 1, 60.0, 6.5), Run(2, "flow", "stopped", 1, 61.0, 7.0)),
    tasks=(Task(1, 1, "a", 1, "success", 2), Task(2, 1, "b", 1, "success", 1)),
    attempts=(
        Attempt(1, 1, 10, "failure", 2.1),
        Attempt(1, 2, 11, "success", 4.1),
        Attempt(2, 1, 12, "success", 6.1),
    ),
    owed={"flow": [60.0]},
    after={"flow": {"b": ["a"]}},
    keys={"k": {6}},
)


def broken(**fields):
    return judge(replace(FINE, **fields))


def put(rows, at, *, drop=1, **fields):
    """The rows with one of them changed, or another between them."""
    changed = rows[at]._replace(**fields)
    return (*rows[:at], changed, *rows[at + drop :])


def test_runs_that_went_as_they_should_are_fine():
    assert judge(FINE) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"runs": (*FINE.runs, Run(3, "flow", "success", 1, 60.0, 6.5))}, "fire time 60 of flow has 2 runs"),
        ({"runs": put(FINE.runs, 0, schedule_time=0.0)}, "fire time 60 of flow has 0 runs"),
        ({"commands": FINE.commands[1:]}, "has the command None"),
        ({"owed": {"flow": [60.0, 120.0]}}, "fire time 120 of flow was never started"),
        ({"commands": put(FINE.commands, 0, is_done=False)}, "command 5 (timer) was never done"),
        ({"commands": put(FINE.commands, 1, error="away")}, "command 6 (start) failed: away"),
        ({"keys": {"k": {6, 7}}}, "its asker was told of [6, 7]"),
        ({"keys": {"other": set()}}, "key other has the commands []"),
        ({"commands": put(FINE.commands, 1, run_id=None)}, "key k has no run"),
        ({"commands": put(FINE.commands, 1, run_id=1)}, "run 1 is that of 2 starts"),
        ({"runs": put(FINE.runs, 1, state="ready_stop")}, "run 2 of flow never ended: it is ready_stop"),
        ({"runs": put(FINE.runs, 0, ended_at=5.5)}, "0.500 s later its b wrote 'end'"),
        ({"lines": (*LINES, Line("begin", 9, "a", 1, 30, 3.0))}, "run 9 wrote lines, and is not there"),
        ({"lines": put(LINES, 2, drop=0, word="overlap")}, "began while another attempt of it was there"),
        ({"lines": put(LINES, 4, drop=0, word="clash")}, "began while another run of its workflow was there"),
        ({"lines": (LINES[0], LINES[2], LINES[1], *LINES[3:])}, "wrote 'fail' after claim 11 had begun"),
        ({"attempts": put(FINE.attempts, 2, outcome=None)}, "(attempt 1, claim 12) never ended"),
        ({"lines": LINES[:5]}, "b of run 1 (attempt 1, claim 12) has succeeded, and wrote ['begin']"),
        ({"lines": put(LINES, 1, word="end")}, "(attempt 1, claim 10) has failed, and wrote ['begin', 'end']"),
        ({"attempts": FINE.attempts[:2]}, "b of run 1 has succeeded, by the attempts []"),
        ({"tasks": put(FINE.tasks, 0, n=3)}, "a of run 1 has succeeded, by the attempts"),
        (
            {
                "lines": (*LINES, Line("begin", 1, "a", 2, 20, 6.1)),
                "attempts": (*FINE.attempts, Attempt(1, 2, 20, "lost", 6.2)),
            },
            "a of run 1 began (claim 20) after its success (11)",
        ),
        (
            {"lines": (*LINES, Line("begin", 1, "b", 1, 20, 6.1))},
            "ran last under claim 20, which is not in the history",
        ),
        ({"lines": (*LINES[4:], *LINES[:4])}, "b of run 1 began before a had succeeded"),
        ({"left": ["workflows/cancels/1.1"]}, "workflows/cancels/1.1 is left in the store"),
    ],
    ids=lambda each: each.replace(" ", "-") if isinstance(each, str) else "",
)
def test_what_must_not_be_is_found(fields, said):
    assert any(said in each for each in broken(**fields)), broken(**fields)


def test_an_attempt_that_was_lost_may_have_written_anything_and_be_followed_by_another():
    lines = (Line("begin", 1, "a", 1, 9, 0.5), *LINES)
    attempts = (Attempt(1, 1, 9, "lost", 0.9), *FINE.attempts)
    assert broken(lines=lines, attempts=attempts) == []
    assert broken(lines=lines) == []  # two claims between two looks: the history has the second


def test_a_rerun_begins_anew_and_waits_for_its_own_tasks():
    again = tuple(each._replace(claim=each.claim + 10, at=each.at + 10) for each in LINES)
    tasks = (*FINE.tasks, *(each._replace(id=each.id + 2, round=2) for each in FINE.tasks))
    attempts = (*FINE.attempts, *(each._replace(task=each.task + 2, claim=each.claim + 10) for each in FINE.attempts))
    runs = put(FINE.runs, 0, round=2, ended_at=17.0)
    given = {"tasks": tasks, "attempts": attempts, "runs": runs}
    assert broken(lines=(*LINES, *again), **given) == []
    early = (*LINES, *again[4:], *again[:4])
    assert any("began before a had succeeded" in each for each in broken(lines=early, **given))


def test_half_a_line_is_no_line():
    assert line_of("begin 1 a 1 10 1.5") == Line("begin", 1, "a", 1, 10, 1.5)
    with pytest.raises(ValueError, match="unpack"):
        line_of("begin 1 a")
