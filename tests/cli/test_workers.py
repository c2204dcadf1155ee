"""`latchwork workers`, on a real store."""

from __future__ import annotations

import json

import pytest

import latchwork
from latchwork.store import system_namespace
from latchwork.worker_group import GroupWorker, WorkerInfo, find

URL = "sqlite:///workers.db"


@pytest.fixture
def workers(cli):
    """The command on a store that is there."""
    latchwork.connect(f"sqlite:///{cli.folder}/workers.db").close()
    return lambda *args, **extra: cli("workers", *args, "--url", URL, **extra)


@pytest.fixture
def store(cli):
    with latchwork.connect(f"sqlite:///{cli.folder}/workers.db") as opened:
        yield opened


def test_a_group_is_submitted_shown_and_listed(workers, store):
    done = workers("submit", "train", "-n", "2", "--label", "team=vision")
    assert (done.code, done.out) == (0, f"train: submitted with 2 workers, run {find(store, 'train').run}\n")
    info = WorkerInfo(ip="10.0.0.7", node="n\x1b[31m7")
    with GroupWorker(store, "train", key="a", info=info):
        told = workers("show", "train")
        assert told.code == 0
        assert "train: RUNNING, run " in told.out
        assert "1 of 2 workers joined, 0 completed" in told.out
        assert "missing ranks: 1" in told.out
        assert "\x1b" not in told.out
        document = workers("show", "train", "--json").json
        assert document["status"]["labels"] == {"team": "vision"}
        assert [each["key"] for each in document["workers"]] == ["a"]
        listed = workers("list", "--json").json
        assert [(each["name"], each["joined"]) for each in listed["groups"]] == [("train", 1)]
    assert "train" in workers("list").out


def test_events_are_printed_in_order(workers, store):
    with GroupWorker(store, "train", workers=1, key="a"):
        lines = [json.loads(line) for line in workers("events", "train", "--json").out.splitlines()]
        assert [(each["number"], each["kind"]) for each in lines] == [(1, "joined"), (2, "all_joined")]
        assert "joined worker 0, epoch 0" in workers("events", "train").out


def test_events_are_followed_until_the_group_is_gone(cli, workers, store, wait_until):
    one = GroupWorker(store, "train", workers=1, key="a")
    one.join()
    started = cli.start("workers", "events", "train", "-f", "--url", URL)
    wait_until(lambda: "all_joined" in started.log.read_text(), "the first events are printed")
    one.complete()
    wait_until(lambda: "completed worker 0" in started.log.read_text(), "what happens is printed")
    one.close()
    wait_until(lambda: started.poll() is not None, "it has ended")


def test_a_group_is_scaled_and_terminated(workers, store):
    workers("submit", "train", "-n", "2")
    assert workers("scale", "train", "5").out == "train: scaled to 5 workers\n"
    assert find(store, "train").status().workers == 5
    assert workers("terminate", "train", "--why", "wrong data").out.startswith("train: terminated, run ")
    assert "train: TERMINATED at " in workers("show", "train").out
    assert "wrong data" in workers("show", "train").out


def test_what_nobody_is_in_is_swept(workers, store):
    workers("submit", "train", "-n", "2")
    system_namespace(store, "workers").put("default/groups/train/runs/dead/members/x", b"{}")
    assert workers("sweep").out == "removed 0 groups, 1 old run, 0 final records\n"
    assert workers("sweep", "--json").json == {"groups": [], "runs": [], "ended": []}


def test_what_cannot_be_done_is_one_line(workers, store):
    workers("show", "none").refused(2, "there is no group 'none'", "latchwork workers submit")
    workers("scale", "none", "2").refused(2, "there is no running group 'none'")
    workers("submit", "a/b", "-n", "1").refused(2, "must not contain '/'")
    workers("submit", "train", "-n", "1", "--label", "x").refused(2, "--label 'x' is not NAME=VALUE")
    with GroupWorker(store, "train", workers=1, key="a"):
        workers("submit", "train", "-n", "1").refused(1, "has running workers 0")
    assert workers("list").code == 0


def test_an_empty_store_says_how_to_begin(workers):
    assert workers("list").out == "no worker groups; submit one with latchwork workers submit GROUP -n N\n"
