"""The judge of the storms over worker groups catches what it must."""

from __future__ import annotations

import pytest

from trials.judges.workers import judge


def well():
    """Two workers that meet once in each of two epochs."""
    found = [{"event": "joined", "key": f"w{number}", "id": number} for number in (0, 1)]
    for epoch in (0, 1):
        for event, time in (("begin", 0), ("arrive", 1), ("pass", 2), ("wrote", 3)):
            found += [
                {
                    "event": event,
                    "time": epoch * 10 + time,
                    "key": f"w{number}",
                    "pid": number,
                    "id": number,
                    "epoch": epoch,
                    "generation": 0,
                    "commit": epoch * 10 + number,
                }
                for number in (0, 1)
            ]
    return found


def changed(which, **figures):
    events = well()
    event = next(each for each in events if all(each.get(name) == value for name, value in which.items()))
    event.update(figures)
    return events


def test_the_referee_finds_nothing_in_a_job_that_went_well():
    assert judge(well(), [(0, 0), (11, 1)], 2) == []


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (changed({"event": "joined", "key": "w1"}, id=0), "the ids are not 0 to 1"),
        ([*well(), {"event": "joined", "key": "w1", "id": 2}], "worker w1 had several ids"),
        (changed({"event": "arrive", "id": 1, "epoch": 1}, time=12.5), "epoch 1, generation 0 passed with [0] alone"),
        (changed({"event": "wrote", "id": 0, "epoch": 0}, commit=15), "work of epoch 0 has landed at 15"),
        ([*well(), {"event": "begin", "key": "w1", "pid": 1, "epoch": 0}], "went back from epoch 1 to 0"),
    ],
    ids=["two with one id", "one with two ids", "early", "old work", "backward"],
)
def test_the_referee_finds_what_must_not_happen(events, told):
    assert any(told in each for each in judge(events, [], 2))


def test_the_referee_finds_old_work_that_nobody_has_told():
    assert judge(well(), [(20, 0)], 2) == ["work of epoch 0 has landed at 20, after work of epoch 1"]
