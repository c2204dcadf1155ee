"""Work queues under random schedules: each item ends once, done or cancelled; nothing is lost, one taker at a time."""

from __future__ import annotations

from latchwork.errors import Conflict, LatchworkError, OutcomeUnknown
from latchwork.primitives import WorkQueue
from latchwork.types import Create, Op
from trials.schedules.harness import PATIENCE_S, Model, ModelBroken, action, check

PARTITIONS = ("a", "b")


class WorkQueueModel(Model):
    """Every item that was put is done once, or cancelled once, or still there; nobody has what another has."""

    def __init__(self):
        super().__init__()
        self.put = set()
        self.unsure = set()
        self.done = set()
        self.cancelled = set()
        self.held = {}
        self.next = 0

    def look(self):
        for item_id, claims in self.held.items():
            holders = [name for name, claim in claims if claim.is_held]
            if len(holders) > 1 and self.claims.are_judged:
                raise ModelBroken(f"{' and '.join(holders)} have item {item_id!r}")

    def open(self, me, store=None):
        return WorkQueue(store or me.store, "work", max_attempts=100)

    def ids(self, me, count):
        self.next += count
        return [f"{me.name}-{number:03d}" for number in range(self.next - count, self.next)]

    def surely(self, ids, found, call):
        """Make a call that puts or ends these; a put is unsure until it has ended, and if nobody knows how."""
        is_put = found is self.put
        self.unsure.update(ids if is_put else ())
        try:
            call()
        except OutcomeUnknown:
            raise
        except LatchworkError:
            self.unsure.difference_update(set(ids) - found if is_put else ())
            raise
        found.update(ids)

    def take(self, me, backlog, limit=2):
        if not backlog.wait_free(PARTITIONS[0], 3.0) and not backlog.wait_free(PARTITIONS[1], 0):
            return []
        claims = backlog.try_take(PARTITIONS, limit=limit)
        for claim in claims:
            self.held.setdefault(claim.item.id, []).append((me.name, claim))
        return claims

    # What actors do

    @action
    def put_one_by_one(self, me):
        with self.open(me) as backlog:
            for item_id in self.ids(me, 2):
                self.surely([item_id], self.put, lambda item_id=item_id: backlog.put("a", "s", item_id, b""))

    @action
    def put_together(self, me):
        with self.open(me) as backlog:
            ids = self.ids(me, 3)
            ops = [
                op
                for n, partition in enumerate(PARTITIONS)
                for op in backlog.put_ops(partition, "s", dict.fromkeys(ids[n::2], b""))
            ]
            self.surely(ids, self.put, lambda: me.store.commit([], ops))

    @action
    def work(self, me):
        with self.open(me) as backlog:
            for claim in self.take(me, backlog):
                me.pause(0.3)
                item_id = claim.item.id
                result = Create(f"results/{item_id}", b"")
                self.surely([item_id], self.done, lambda claim=claim, result=result: claim.ack(ops=[result]))

    @action
    def work_in_turn(self, me):
        """Wait in line for one item, and keep the place until it is taken."""
        with self.open(me) as backlog:
            claim = backlog.take("a", 3.0)
            item_id = claim.item.id
            self.held.setdefault(item_id, []).append((me.name, claim))
            result = Create(f"results/{item_id}", b"")
            self.surely([item_id], self.done, lambda: claim.ack(ops=[result]))

    @action
    def work_as_told(self, me):
        """Take what a wait tells, after a while in which others may have taken or changed it."""
        with self.open(me) as backlog:
            told = backlog.wait_items("a", 3.0) or backlog.items("a", limit=3)
            me.pause(0.1)
            for claim in backlog.take_items(told):
                item_id = claim.item.id
                self.held.setdefault(item_id, []).append((me.name, claim))
                result = Create(f"results/{item_id}", b"")
                self.surely([item_id], self.done, lambda claim=claim, result=result: claim.ack(ops=[result]))

    @action
    def work_on_many(self, me):
        """End claims in one transaction of one's own; sent again while its outcome is unknown."""
        with self.open(me) as backlog:
            claims = self.take(me, backlog, 3)
            me.pause(0.5)
            ends = [claim.prepare_ack([Create(f"results/{claim.item.id}", b"")]) for claim in claims if claim.is_held]
            ids = [claim.item.id for claim in claims][: len(ends)]
            self.surely(ids, self.done, lambda: self.end_together(me, ends))

    def end_together(self, me, ends):
        checks = [check for end in ends for check in end.checks]
        ops: list[Op] = [op for end in ends for op in end.ops]
        while ends:
            try:
                me.store.commit(checks, ops)
            except (OutcomeUnknown, Conflict) as error:
                landed = [end.was_committed(error) for end in ends]
                if all(landed):
                    return
                if any(landed):
                    raise ModelBroken("a part of a transaction landed") from error
                if isinstance(error, Conflict):
                    raise ModelBroken("nothing has changed, and yet it was refused") from error
                me.pause(0.2)
            else:
                for end in ends:
                    end.mark_committed()
                return

    @action
    def give_back_to_another_partition(self, me):
        with self.open(me) as backlog:
            for claim in self.take(me, backlog):
                me.pause(2.0)
                claim.release("not now", partition=PARTITIONS[claim.item.partition == PARTITIONS[0]])

    @action
    def give_back(self, me):
        with self.open(me) as backlog:
            for claim in self.take(me, backlog):
                claim.release(count=False)

    @action
    def forget(self, me):
        with self.open(me) as backlog:
            self.take(me, backlog)

    @action
    def hurry(self, me):
        """Put and take at once, so that shelves are often empty, and found so while others put."""
        with self.open(me) as backlog:
            for item_id in self.ids(me, 4):
                self.surely([item_id], self.put, lambda item_id=item_id: backlog.put("a", "s", item_id, b""))
                for claim in backlog.try_take(["a"], limit=5):
                    result = Create(f"results/{claim.item.id}", b"")
                    self.surely([claim.item.id], self.done, lambda claim=claim, end=result: claim.ack(ops=[end]))
                backlog.try_take(["a"], limit=5, accept=lambda _item: False)

    @action
    def cancel_at_once(self, me):
        """Cancel what others are about to take."""
        with self.open(me) as backlog:
            for _ in range(4):
                for item in backlog.items("a", limit=3):
                    cancelled = Create(f"cancelled/{item.id}", b"")
                    removing = lambda item=item, end=cancelled: backlog.remove(item, ops=[end])  # noqa: E731
                    self.surely([item.id], set(), removing)

    @action
    def cancel(self, me):
        with self.open(me) as backlog:
            for item in backlog.items(limit=2):
                me.pause(0.3)
                op = Create(f"cancelled/{item.id}", b"")
                removed = []
                self.surely(
                    [item.id],
                    set(),
                    lambda item=item, op=op, removed=removed: removed.append(
                        backlog.remove(item, ops=[op], even_if_claimed=item.attempts > 0)
                    ),
                )
                if removed == [True]:
                    self.cancelled.add(item.id)

    # In the end

    def finish(self, store):
        with self.open(None, store) as backlog:
            assert backlog.claims() == {}
            assert [backlog.waiting_consumers(partition) for partition in PARTITIONS] == [[], []]
            left = {item.id for item in backlog.items(limit=1000)}
            found = set()
            while claims := backlog.try_take(PARTITIONS, limit=50):
                found.update(claim.item.id for claim in claims)
                for claim in claims:
                    claim.ack()
            assert found == left, "an item that nobody can have"
            assert backlog.partitions() == [], "a partition that nothing is in"
            assert not backlog.wait_free("a", PATIENCE_S / 100)
        done, cancelled = set(store.children("results")), set(store.children("cancelled"))
        assert not done & cancelled, "done and cancelled"
        assert not left & (done | cancelled), "done or cancelled, and still there"
        assert self.done <= done, "what was confirmed as done is not"
        assert self.cancelled <= cancelled, "what was confirmed as cancelled is not"
        lost = self.put - left - done - cancelled
        assert not lost, f"items were lost: {lost}"
        assert left | done | cancelled <= self.put | self.unsure, "an item came from nowhere"


def test_work_queue_keeps_its_rules_under_random_schedules():
    check(WorkQueueModel)
