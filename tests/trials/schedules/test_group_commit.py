"""Group commits and worker loops under random schedules: each unit is written once, each item comes to one end."""

from __future__ import annotations

import json

from latchwork.clock import Signal
from latchwork.errors import Conflict, LatchworkError, OutcomeUnknown
from latchwork.primitives import WorkQueue
from latchwork.tasks import (
    Done,
    Functions,
    GroupCommit,
    Outcome,
    Payloads,
    Run,
    Slots,
    StoredCall,
    WorkerHooks,
    WorkerLoop,
)
from latchwork.types import Absent, At, Create, Delete, Put
from trials.schedules.harness import PATIENCE_S, Model, ModelBroken, action, check

PAYLOADS = Payloads()


class GroupCommitModel(Model):
    """What was answered is so: written exactly once, or not at all."""

    is_about_threads = True

    def __init__(self):
        super().__init__()
        self.number = 0
        self.written, self.refused = set(), set()
        self.taken = []

    def setup(self, store):
        store.put("lead", b"")
        for n in range(3):
            store.put(f"claims/{n}", b"")

    def submit(self, me, commits, checks, ops, key):
        def was_committed(_error):
            entry = me.store.get(key)
            return entry is not None and entry.value == value

        value = f"{me.name}{self.number}".encode()
        self.number += 1
        return value, commits.submit([Absent(key), *checks], [Create(key, value), *ops], was_committed, timeout_s=30.0)

    @action
    def write_many(self, me):
        """Units of different keys, one of them refused, and two that touch one key."""
        commits = GroupCommit(me.store, label=me.name)
        with me.ended(commits):
            sent = []
            for n in range(4):
                key = f"results/{me.name}-{self.number}"
                checks = [Absent("lead")] if n == 2 else []
                ops = [Put("shared", key.encode())] if n % 2 else []
                sent.append((n == 2, key, *self.submit(me, commits, checks, ops, key)))
            for is_bad, key, value, future in sent:
                error = future.exception(PATIENCE_S)
                if error is None and is_bad:
                    raise ModelBroken(f"{key} was written although its check did not hold")
                if isinstance(error, Conflict) and not is_bad:
                    raise ModelBroken(f"{key} was refused for another's check")
                if error is None:
                    self.written.add((key, value))
                elif not isinstance(error, OutcomeUnknown):
                    self.refused.add(key)

    @action
    def end_a_claim(self, me):
        """Everybody tries to end the same claims: each is ended once."""
        commits = GroupCommit(me.store, label=me.name)
        with me.ended(commits):
            for n in range(3):
                entry = me.store.get(f"claims/{n}")
                if entry is None:
                    continue
                mark = f"{me.name}-{self.number}"
                self.number += 1

                def was_committed(_error, n=n, mark=mark):
                    found = me.store.get(f"ended/{n}")
                    return found is not None and found.value == mark.encode()

                future = commits.submit(
                    [At(entry)], [Delete(entry.key), Create(f"ended/{n}", mark.encode())], was_committed, timeout_s=30.0
                )
                if future.exception(PATIENCE_S) is None:
                    self.taken.append(n)

    def finish(self, store):
        if len(set(self.taken)) != len(self.taken):
            raise ModelBroken("a claim was ended twice")
        for key, value in self.written:
            entry = store.get(key)
            if entry is None or entry.value != value:
                raise ModelBroken(f"{key} was said to be written, and is not")
        for key in self.refused:
            if store.get(key) is not None:
                raise ModelBroken(f"{key} was said to be refused, and is written")
        for n in self.taken:
            assert store.get(f"claims/{n}") is None


class Work(WorkerHooks):
    def __init__(self, model, me):
        self.model, self.me = model, me

    def select_partitions(self):
        return ["any"]

    def prepare_run(self, claim):
        return Run(StoredCall("run", bytes.fromhex(json.loads(claim.value)["args"])), claim.item.id)

    def handle_outcome(self, claim, outcome):
        return Done(ops=(Create(f"results/{claim.item.id}", outcome.to_bytes()),))


class FeederModel(Model):
    """Every item that was put comes to one result, by whichever node; nothing is left when all is done."""

    actors = (2, 3)
    is_about_threads = True

    def __init__(self):
        super().__init__()
        self.put, self.doubtful, self.number = set(), set(), 0
        self.functions = Functions()
        self.functions.task(self.run, name="run")

    def run(self, n: int) -> int:
        return n + 1

    @action
    def put_two(self, me):
        backlog = WorkQueue(me.store, "work")
        for _ in range(2):
            self.number += 1
            name = f"{me.name}-{self.number}"
            args = PAYLOADS.encode_call(self.functions.get("run"), (self.number,), {}).hex()
            self.doubtful.add(name)
            try:
                backlog.put("any", "s1", name, json.dumps({"args": args}).encode())
            except OutcomeUnknown:
                continue
            except LatchworkError:
                self.doubtful.discard(name)
                continue
            self.put.add(name)

    def node(self, me, store, seconds):
        commits = GroupCommit(store, label=me)
        slots = Slots(2, self.functions, PAYLOADS, label=me, clock=store.clock, stop_grace_s=1.0)
        backlog = WorkQueue(store, "work", max_attempts=100)
        worker_loop = WorkerLoop(backlog, slots, commits, Work(self, me), store=store, node_id=me)
        worker_loop.start()
        try:
            seconds()
        finally:
            worker_loop.close(5.0)
            slots.close(5.0)
            commits.close(5.0)

    @action
    def feed(self, me):
        self.node(me.name, me.store, lambda: me.pause(2.0))

    def finish(self, store):
        wanted = self.put

        def until_done():
            for _ in range(400):
                if wanted <= set(store.children("results")) and store.children("work/items") == []:
                    return
                store.clock.wait(never_set(), 0.5)

        self.node("last", store, until_done)
        results = set(store.children("results"))
        if not wanted <= results:
            raise ModelBroken(f"items were lost: {sorted(wanted - results)}")
        assert results <= wanted | self.doubtful, "a result came from nowhere"
        for name in results:
            assert (
                Outcome.from_bytes(store.get(f"results/{name}").value).result(PAYLOADS, int)
                == int(name.split("-")[1]) + 1
            )
        assert store.children("work/items") == [], "an item is left"


def never_set():
    """What a pause waits for."""
    return Signal()


def test_group_commit_keeps_its_rules_under_random_schedules():
    check(GroupCommitModel)


def test_worker_loop_keeps_its_rules_under_random_schedules():
    check(FeederModel, 15)
