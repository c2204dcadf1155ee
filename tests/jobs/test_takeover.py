"""What happens to the items when processes die, freeze or are told to end: real processes, real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

import latchwork
from backends_table import ONE_OF_EACH_KIND, SHARED
from latchwork.jobs import inspect

NODE = Path(__file__).with_name("node.py")
ITEMS = [f"item-{i}" for i in range(12)]
TTL_S = 2.0  # of sessions and locks, as node.py asks for; every test server grants it
BOUND_S = TTL_S + 2.0
DELAY_S = 0.05  # between runs of an item, as node.py has it


def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Fleet:
    """Node processes with one run log, killed at the end of the test if they are still there."""

    def __init__(self, url, folder):
        self.url = url
        self.log_path = folder / "runs.jsonl"
        self.folder = folder
        self.processes = {}
        self.killed_at = {}

    def start(self, *node_ids):
        for node_id in node_ids:
            command = [sys.executable, str(NODE), self.url, node_id, str(self.log_path), str(len(ITEMS))]
            with (self.folder / f"{node_id}.log").open("ab") as output:
                self.processes[node_id] = subprocess.Popen(command, stdout=output, stderr=output)

    def kill(self, node_id):
        process = self.processes.pop(node_id)
        process.kill()
        process.wait(10)
        self.killed_at[process.pid] = now()
        return self.killed_at[process.pid]

    def pid(self, node_id):
        return self.processes[node_id].pid

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait(10)

    def output(self, node_id):
        return (self.folder / f"{node_id}.log").read_text()

    def events(self):
        if not self.log_path.exists():
            return []
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]

    def started_since(self, moment, without=()):
        """Item to the first start after the moment on any other node."""
        found = {}
        for event in self.events():
            if event["event"] == "start" and event["time"] > moment and event["node"] not in without:
                found.setdefault(event["item"], event["time"])
        return found


def check_runs(events, killed_at):
    """No two runs of an item overlap, and their tokens never go back. How many runs there were."""
    runs = {}
    for event in events:
        key = (event["pid"], event["item"])
        if event["event"] == "start":
            runs.setdefault(key, []).append([event["time"], None, event["token"]])
        else:
            runs[key][-1][1] = event["time"]
    by_item = {}
    for (pid, item), found in runs.items():
        for start, end, token in found:
            by_item.setdefault(item, []).append((start, end or killed_at.get(pid, now()), token, pid))
    for item, found in by_item.items():
        found.sort()
        for before, after in pairwise(found):
            assert before[1] <= after[0], f"{item} ran twice at a time: {before} and {after}"
            assert before[2] <= after[2], f"{item} went back to an older token: {before} and {after}"
    return sum(map(len, by_item.values()))


@pytest.fixture
def fleet(backend_url, tmp_path):
    made = Fleet(backend_url, tmp_path)
    yield made
    made.close()
    for path in sorted(tmp_path.glob("n*.log")):  # shown by pytest when the test failed
        print(f"--- {path.name}", path.read_text()[-6_000:], sep="\n")


processes = pytest.mark.parametrize("backend_url", SHARED, indirect=True)
#: One of each kind: what takes long and does not depend on the version of a server.
kinds = pytest.mark.parametrize("backend_url", ONE_OF_EACH_KIND, indirect=True)


def settled(fleet, eventually, *node_ids):
    """Wait until these nodes live, share all items evenly, and each item has run; the inspector's view."""
    with latchwork.connect(fleet.url) as store:

        def even():
            state = inspect(store)
            if state is None or sorted(state.nodes) != sorted(node_ids) or state.manager is None:
                return None
            sizes = [len(node.assigned.get("walk", ())) for node in state.nodes.values()]
            holders = {lock.item: lock.holder.label for lock in state.locks}
            placed = {item: node.node_id for node in state.nodes.values() for item in node.assigned.get("walk", ())}
            good = sum(sizes) == len(ITEMS) and max(sizes) - min(sizes) <= 1 and holders == placed
            return state if good else None

        return eventually(even, 30, "an even share of all items")


@pytest.mark.slow
@processes
@pytest.mark.parametrize("victim", ["worker", "manager"])
def test_every_item_of_a_killed_node_runs_elsewhere_within_the_ttl_and_two_seconds(fleet, eventually, victim):
    fleet.start("n1", "n2", "n3")
    state = settled(fleet, eventually, "n1", "n2", "n3")
    manager = state.manager
    killed = manager if victim == "manager" else min(set(state.nodes) - {manager})
    items = set(state.nodes[killed].assigned["walk"])
    moment = fleet.kill(killed)
    taken = eventually(lambda: len(found := fleet.started_since(moment, {killed})) == len(ITEMS) and found, 15)
    slowest_s = max(taken[item] for item in items) - moment
    print(f"takeover of {len(items)} items of the {victim} took {slowest_s:.2f} s")
    assert slowest_s <= BOUND_S
    assert check_runs(fleet.events(), fleet.killed_at) > len(ITEMS)
    assert settled(fleet, eventually, *sorted({"n1", "n2", "n3"} - {killed})).manager != killed


def stale_starts(events, frozen, moment):
    """Starts under an older token than one before, but for those that were under way when their process froze.

    Between the look at the lock and the first line of a run a process may freeze like anywhere else. Such a run was due
    by then: its delay after the last run was over.
    """
    found, tokens, last_of_frozen = [], {}, {}
    for event in events:
        item = event["item"]
        if event["event"] == "start" and event["token"] < tokens.get(item, 0):
            before = last_of_frozen.get(item)
            was_due = before is None or (before["event"] == "end" and before["time"] + DELAY_S <= moment + 0.005)
            if event["pid"] != frozen or not was_due:
                found.append(event)
        elif event["event"] == "start":
            tokens[item] = event["token"]
        if event["pid"] == frozen:
            last_of_frozen[item] = event
    return found


def test_a_start_under_an_older_token_is_stale_unless_it_was_due_when_its_process_froze():
    def event(kind, at, pid, token=None):
        return {"event": kind, "time": at, "item": "a", "pid": pid, "token": token}

    taken_over = [event("start", 8, 2, 7), event("end", 9, 2)]
    ended = [event("start", 1, 1, 5), event("end", 2, 1)]
    woken = event("start", 10, 1, 5)
    assert stale_starts([*ended, *taken_over, woken], 1, moment=3) == []
    assert stale_starts([*ended, *taken_over, woken], 1, moment=2.01) == [woken], "it was not due yet"
    assert stale_starts([*ended, *taken_over, woken], 3, moment=3) == [woken], "it had not been frozen"
    running = [event("start", 1, 1, 5), *taken_over, event("end", 10, 1)]
    assert stale_starts([*running, woken], 1, moment=3) == [woken], "the run that was under way was another one"
    assert stale_starts([*ended, *taken_over, event("start", 10, 1, 9)], 1, moment=3) == []


@pytest.mark.slow
@kinds
def test_a_frozen_node_loses_its_items_and_comes_back_without_harm(fleet, eventually):
    fleet.start("n1", "n2")
    state = settled(fleet, eventually, "n1", "n2")
    frozen = state.manager  # the one that could do most harm when it wakes
    os.kill(fleet.pid(frozen), signal.SIGSTOP)
    moment = now()
    try:
        other = ({"n1", "n2"} - {frozen}).pop()
        eventually(lambda: len(fleet.started_since(moment, {frozen})) == len(ITEMS), 15)
    finally:
        os.kill(fleet.pid(frozen), signal.SIGCONT)
    woken = now()
    state = settled(fleet, eventually, "n1", "n2")
    assert state.manager == other
    interrupted = {event["item"] for event in fleet.events() if event["time"] <= woken}
    assert interrupted == set(ITEMS)
    # what was under way when it froze ends late; every run it starts after that is under a fresh lock
    assert stale_starts(fleet.events(), fleet.pid(frozen), moment) == []


@processes
def test_a_node_told_to_end_hands_its_items_over_at_once(fleet, eventually):
    fleet.start("n1", "n2")
    state = settled(fleet, eventually, "n1", "n2")
    leaving = state.manager
    moment = now()
    process = fleet.processes.pop(leaving)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    fleet.killed_at[process.pid] = now()
    taken = eventually(lambda: len(found := fleet.started_since(moment, {leaving})) == len(ITEMS) and found)
    assert max(taken.values()) - moment <= 2.0, "it must not wait for any TTL"
    assert "stopping because of signal SIGTERM" in fleet.output(leaving)
    assert "is closed, it took" in fleet.output(leaving)
    assert "Traceback" not in fleet.output(leaving)
    check_runs(fleet.events(), fleet.killed_at)


@pytest.mark.slow
@kinds
def test_a_killed_node_that_starts_again_at_once_waits_for_its_old_session_and_works(fleet, eventually):
    fleet.start("n1", "n2")
    settled(fleet, eventually, "n1", "n2")
    moment = fleet.kill("n1")
    fleet.start("n1")
    eventually(lambda: any(e["node"] == "n1" and e["time"] > moment for e in fleet.events()), 15)
    settled(fleet, eventually, "n1", "n2")
    check_runs(fleet.events(), fleet.killed_at)


def test_the_checker_of_run_logs_catches_an_overlap_and_an_old_token():
    def event(kind, at, pid, token=None):
        return {"event": kind, "time": at, "item": "a", "node": str(pid), "pid": pid, "token": token}

    good = [event("start", 1, 1, 5), event("end", 2, 1), event("start", 3, 2, 6), event("end", 4, 2)]
    assert check_runs(good, {}) == 2
    with pytest.raises(AssertionError, match="twice at a time"):
        check_runs([event("start", 1, 1, 5), event("start", 1.5, 2, 6), event("end", 2, 1), event("end", 3, 2)], {})
    with pytest.raises(AssertionError, match="twice at a time"):
        check_runs([event("start", 1, 1, 5), event("start", 1.5, 2, 6)], {1: 2})
    with pytest.raises(AssertionError, match="older token"):
        check_runs([event("start", 1, 1, 6), event("end", 2, 1), event("start", 3, 2, 5), event("end", 4, 2)], {})
