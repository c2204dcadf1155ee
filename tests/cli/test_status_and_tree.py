"""`latchwork status` and `latchwork tree`: looking without touching."""

from __future__ import annotations

import json
import re

import pytest

import latchwork
from backends_table import ONE_OF_EACH_KIND
from latchwork.jobs import Cron, FixedDelay, Job, JobManager, Threads
from latchwork.jobs.stored import cluster_store


def job(items=("east", "north", "south", "west")):
    return Job("report", work_pool=list(items), run=lambda context: None, schedule=FixedDelay(0.5), initial_delay_s=0)


@pytest.fixture(params=ONE_OF_EACH_KIND)
def url(request, cli):
    if request.param == "sqlite":
        return f"sqlite:///{cli.folder}/cluster.db?root=status"
    return request.getfixturevalue(request.param).url(f"status-{request.node.originalname[:40]}")


def all_run(url, wait_until):
    def look():
        with latchwork.connect(url) as store:
            return len(store.list("@jobs/locks/report")) == 4

    wait_until(look, "every item has a lock")


def test_status_shows_who_leads_who_lives_what_runs_where_and_which_locks_are_held(cli, url, wait_until):
    with JobManager(url, "n1", job()) as first, JobManager(url, "n2", job()):
        wait_until(lambda: _balanced(cli, url), "both have two items")
        state = cli("status", "--json", "--url", url).json
        leader = "n1" if first.is_manager else "n2"
        assert state["manager"] == leader
        assert sorted(state["candidates"]) == ["n1", "n2"]
        assert sorted(state["nodes"]) == ["n1", "n2"]
        assert state["nodes"]["n1"]["state"] == "ready"
        assert state["nodes"]["n1"]["pid"] > 0
        assert state["jobs"]["report"]["running"] == 0
        running = state["jobs"]["report"]["locked"]
        assert sorted(running) == ["east", "north", "south", "west"]
        assert running == state["jobs"]["report"]["assigned"]
        assert sorted((lock["item"], lock["holder"]) for lock in state["locks"]) == sorted(running.items())
        text = cli("status", LATCHWORK_URL=url)
        assert text.code == 0
        assert f"manager: {leader}; next:" in text.out
        for node in ("n1", "n2"):
            mine = ", ".join(sorted(item for item, owner in running.items() if owner == node))
            assert f"  {node}: 2 items: {mine}\n" in text.out
        assert "locks held: 4 (n1 2, n2 2)" in text.out


def test_status_and_jobs_list_tell_runs_that_go_on_from_locks_that_are_held(cli, url, wait_until):
    waiting = Job("night", work_pool=["a", "b", "c"], run=print, schedule=Cron("0 3 1 1 *"))
    items = ["east", "north", "south", "west"]
    endless = Job(
        "report", work_pool=items, run=lambda c: c.wait_for_stop(), initial_delay_s=0, threads=Threads.per_item()
    )
    with JobManager(url, "n1", [endless, waiting]):
        wait_until(lambda: "4 running" in cli("status", "--url", url).out, "the runs have lasted a second")
        text = cli("status", "--url", url).out
        assert "job report: 4 items, 4 locked to run, 4 running\n" in text
        assert "  running at n1: 4 items since 20" in text
        assert "job night: 3 items, 3 locked to run, none running for longer than a second\n" in text
        jobs = cli("status", "--json", "--url", url).json["jobs"]
        assert jobs["night"]["active"] == []
        (active,) = jobs["report"]["active"]
        assert (active["node"], active["runs"], active["items"]) == ("n1", 4, 4)
        assert sorted(active["named"]) == items
        rows = {row["job"]: row for row in cli("jobs", "list", "--json", "--url", url).json["jobs"]}
        assert (rows["report"]["locked"], rows["report"]["running"]) == (4, 4)
        assert (rows["night"]["locked"], rows["night"]["running"]) == (3, 0)


def _balanced(cli, url):
    done = cli("status", "--json", "--url", url)
    running = done.json["jobs"].get("report", {}).get("locked", {}) if done.code == 0 else {}
    return sorted(running.values()) == ["n1", "n1", "n2", "n2"]


def test_status_of_an_empty_root_says_no_cluster_and_exits_with_3(cli, url):
    with latchwork.connect(url) as store:
        store.put("something", b"else")
    root = "status" if url.startswith("sqlite") else re.split("/|root=", url)[-1]
    line = cli("status", "--url", url).refused(3, f"no cluster under /{root}", "latchwork run")
    assert "@jobs" not in line


def test_status_after_everybody_died_shows_nobody_and_after_everybody_left_no_cluster(cli, wait_until):
    url = f"sqlite:///{cli.folder}/cluster.db"
    cli.write("jobs.py", "from latchwork.jobs import Job\nj = Job('report', work_pool=list('abcd'), run=print)\n")
    node = cli.start("run", "jobs:j", "--url", url, "--node-id", "n1", "--session-ttl-s", "1", "--lock-ttl-s", "1")
    wait_until(lambda: "is started" in node.log.read_text(), "it is started")
    node.kill()
    node.wait(10)
    wait_until(lambda: cli("status", "--json", "--url", url).json["nodes"] == {}, "its session has run out")
    done = cli("status", "--url", url)
    assert done.code == 0
    assert "manager: none" in done.out
    assert "no running nodes" in done.out
    assert "4 items not assigned" in done.out
    with JobManager(url, "n1", job()):
        pass
    cli("status", "--url", url).refused(3, "no cluster under /")


def test_status_names_the_first_items_of_many_and_all_when_asked(cli, wait_until):
    url = f"sqlite:///{cli.folder}/cluster.db"
    with JobManager(url, "n1", job([f"item-{number:02}" for number in range(20)])):
        wait_until(lambda: "n1: 20 items" in cli("status", "--url", url).out, "all are assigned")
        assert "item-07 and 12 more" in cli("status", "--url", url).out
        assert "item-19\n" in cli("status", "--all", "--url", url).out


def test_looking_at_a_file_that_does_not_exist_does_not_create_it(cli):
    cli("status", "--url", "sqlite:///nothing.db").refused(3, "nothing.db", "does not exist")
    cli("tree", "--url", "sqlite:///nothing.db").refused(2, "nothing.db", "does not exist")
    assert not (cli.folder / "nothing.db").exists()


def test_tree_shows_every_key_with_its_size_and_owner_and_no_value(cli, url):
    with latchwork.connect(url) as store:
        store.put("config/greeting", b"hello")
        store.put("config", b"")
        store.put("deep/down/below", b"x" * 1234)
        store.put("alive/n1", b"", session=store.session)
        done = cli("tree", "--url", url)
        assert done.code == 0
        lines = [line.strip("│├└─ \u00a0") for line in done.out.splitlines()]
        assert "config  0 B" in lines
        assert "greeting  5 B" in lines
        assert "below  1,234 B" in lines
        assert f"n1  0 B  session {store.session.id}" in lines
        assert "4 keys, 1,239 bytes" in lines
        assert "hello" not in done.out
        rows = cli("tree", "--json", "--url", url).json
        assert [row["key"] for row in rows] == ["alive/n1", "config", "config/greeting", "deep/down/below"]
        assert rows[0]["owner"] == store.session.id
        assert all("value" not in row for row in rows)


def test_tree_of_a_prefix_shows_the_key_itself_and_what_is_below(cli):
    url = f"sqlite:///{cli.folder}/tree.db"
    with latchwork.connect(url) as store:
        for key in ("a", "a/b", "a/b/c", "ab"):
            store.put(key, b"1")
    rows = cli("tree", "a", "--json", "--url", url).json
    assert [row["key"] for row in rows] == ["a", "a/b", "a/b/c"]
    assert "2 keys" in cli("tree", "a/b", "--url", url).out
    assert "no keys under x" in cli("tree", "x", "--url", url).out


def test_tree_shows_more_keys_than_a_page_holds(cli):
    url = f"sqlite:///{cli.folder}/tree.db"
    with latchwork.connect(url) as store, store.pipeline() as pipeline:
        for number in range(2500):
            pipeline.put(f"many/k{number:04}", b"1")
    assert len(cli("tree", "--json", "--url", url).json) == 2500


def test_tree_with_values_masks_secrets_and_defuses_control_characters(cli):
    url = f"sqlite:///{cli.folder}/tree.db"
    with latchwork.connect(url) as store:
        store.put("plain", b"readable")
        store.put("binary", b"\xff\xfe\x00")
        store.put("escape", b"\x1b[31mred\x1b[0m [bold]markup[/bold]")
        store.put("login", b'{"user": "ann", "password": "s3cret", "inner": [{"api_key": "k3y"}]}')
        store.put("db-password", b"hunter2")
        store.put("words", b"token=abc123")
        store.put("long", b"y" * 5000)
    done = cli("tree", "--values", "--url", url)
    assert done.code == 0
    assert "readable" in done.out
    assert "<3 bytes, not text>" in done.out
    assert "\x1b" not in done.out
    assert r"\x1b[31mred\x1b[0m [bold]markup[/bold]" in done.out
    assert '"user": "ann"' in done.out
    for secret in ("s3cret", "k3y", "hunter2", "abc123"):
        assert secret not in done.out
        assert secret not in cli("tree", "--values", "--json", "--url", url).out
    assert "y" * 201 not in done.out


def test_status_defuses_control_characters_that_somebody_stored(cli):
    url = f"sqlite:///{cli.folder}/cluster.db"
    member = {
        "worker": "n1",
        "state": "ready",
        "host": "\x1b[31mred\nforged line",
        "pid": 1,
        "incarnation": "x",
        "since": 0,
        "ttl_s": 1,
    }
    with latchwork.connect(url) as store:
        cluster_store(store).put("alive/n1", json.dumps(member).encode())
    done = cli("status", "--url", url)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    assert "\nforged line" not in done.out
    assert r"\x1b[31mred\nforged line" in done.out.replace("\n", "")
