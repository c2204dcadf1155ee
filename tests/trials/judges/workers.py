"""The verdict on a storm over a job of workers: ids, barriers, epochs. Pure."""

from __future__ import annotations

from collections import defaultdict


def judge(events, writes, workers):
    """What must not have happened, as sentences.

    Args:
        events: what the processes have reported, with the time of one clock.
        writes: token and epoch of each write that was seen in the store, in any order.
        workers: how many there are.
    """
    return [*_ids(events, workers), *_early(events, workers), *_old(events, writes), *_backward(events)]


def _ids(events, workers):
    by_key = defaultdict(set)
    for event in events:
        if event["event"] == "joined":
            by_key[event["key"]].add(event["id"])
    for key, ids in sorted(by_key.items()):
        if len(ids) != 1:
            yield f"worker {key} had several ids: {sorted(ids)}"
    seen = sorted(number for ids in by_key.values() for number in ids)
    if seen != list(range(workers)):
        yield f"the ids are not 0 to {workers - 1}, one each: {seen}"


def _early(events, workers):
    """Nobody passes before all have come: each says that it comes before it does, and that it passed after it has."""
    came, passed = defaultdict(dict), {}
    for event in events:
        if event["event"] == "arrive":
            here = came[event["epoch"], event["generation"]]
            here[event["id"]] = min(event["time"], here.get(event["id"], event["time"]))
        elif event["event"] == "pass":
            at = (event["epoch"], event["generation"])
            passed[at] = min(event["time"], passed.get(at, event["time"]))
    for at, moment in sorted(passed.items()):
        here = {number for number, time in came[at].items() if time <= moment}
        if len(here) < workers:
            yield f"epoch {at[0]}, generation {at[1]} passed with {sorted(here)} alone"


def _old(events, writes):
    """In the order of the store no write of an epoch comes after one of a later epoch."""
    landed = {event["commit"]: event["epoch"] for event in events if event["event"] == "wrote"}
    for token, epoch in writes:
        if landed.setdefault(token, epoch) != epoch:
            yield f"the write {token} is of epoch {epoch} in the store, of {landed[token]} as told"
    newest = -1
    for token in sorted(landed):
        if landed[token] < newest:
            yield f"work of epoch {landed[token]} has landed at {token}, after work of epoch {newest}"
        newest = max(newest, landed[token])


def _backward(events):
    """A process never goes back to an earlier epoch."""
    last = {}
    for event in events:
        if event["event"] == "begin":
            who = (event["key"], event["pid"])
            if event["epoch"] < last.get(who, -1):
                yield f"worker {event['key']} went back from epoch {last[who]} to {event['epoch']}"
            last[who] = event["epoch"]
