"""Who joined, who runs, who is missing; leaving, and the last one out."""

from __future__ import annotations

import pytest

from latchwork.errors import WaitTimeout
from latchwork.workers import WorkerInfo, find
from workers.conftest import die


def keys_of(store):
    return [entry.key for entry in store.list("workers", recursive=True)]


def test_who_has_joined_stays_known_and_who_runs_lives(team):
    a, b, c = team(3)
    c.close()
    assert [info.id for info in a.joined()] == [0, 1, 2]
    assert [info.id for info in b.running()] == [0, 1]


def test_the_lease_of_a_dead_worker_is_gone_within_its_ttl_and_its_record_stays(team, eventually):
    a, b = team(2)
    die(b)
    assert eventually(lambda: [info.id for info in a.running()] == [0])
    assert [info.key for info in a.joined()] == ["a", "b"]


def test_all_waits_for_the_last_one_and_names_who_is_missing(worker, in_thread):
    a = worker("a", workers=3)
    with pytest.raises(WaitTimeout, match=r"no worker has these ids after 0\.2 s: 1, 2"):
        a.all(0.2)
    waiting = in_thread(lambda: a.all(60.0))
    worker("b")
    worker("c")
    assert [info.key for info in waiting.outcome()] == ["a", "b", "c"]


def test_others_see_what_a_worker_says_of_itself(worker):
    info = WorkerInfo(
        ip="10.0.0.7",
        ports={"data": 9000, "control": 9001},
        node="n7",
        rack="r2",
        datacentre="d1",
        resources={"gpu": 2, "memory_gb": 31.5},
    )
    worker("a", workers=2, info=info)
    found = worker("b").all(30.0)[0]
    assert (found.ip, dict(found.ports), found.node, found.rack, found.datacentre, dict(found.resources)) == (
        *("10.0.0.7", {"data": 9000, "control": 9001}, "n7", "r2", "d1"),
        {"gpu": 2, "memory_gb": 31.5},
    )


@pytest.mark.parametrize(
    "wrong", [{"ports": {"data": 0}}, {"ports": {"data": 70_000}}, {"ip": 7}, {"resources": {"gpu": -1}}]
)
def test_what_cannot_be_said_of_a_worker_is_refused(wrong):
    with pytest.raises((ValueError, TypeError), match="of a worker must be"):
        WorkerInfo(**wrong)


def test_the_last_one_to_leave_a_job_that_has_ended_removes_it(team, store):
    team_of_two = team(2)
    for each in team_of_two:
        each.complete()
    team_of_two[0].close()
    assert find(store, "train") is not None
    team_of_two[1].close()
    assert keys_of(store) == ["workers/ended/train"]


@pytest.mark.parametrize("number", range(4))
def test_two_that_leave_at_the_same_moment_remove_the_job_once(team, all_at_once, store, number):
    members = team(2)
    for each in members:
        each.complete()
    all_at_once(lambda one: one.leave(), members)
    assert keys_of(store) == ["workers/ended/train"]


def test_a_worker_that_leaves_while_the_job_is_on_comes_back_with_its_id(team, worker):
    a, b = team(2)
    a.close()
    assert worker("a").id == 0
    assert b.is_alive
