"""Counters and sequences under random schedules: every change exactly once, or said to be unknown."""

from __future__ import annotations

from latchwork.errors import OutcomeUnknown
from latchwork.primitives import Counter, Sequence
from latchwork.types import Create
from trials.judges.primitive import gaps, miscounted
from trials.schedules.harness import Model, action, check, refuse


class CounterModel(Model):
    """The count is what was added, up to what is said to be unknown or died on its way."""

    def __init__(self):
        super().__init__()
        self.least = 0
        self.doubtful = 0
        self.seen = []

    def change(self, fn, amount):
        """Count a change as doubtful from before it begins: its actor may die in the middle."""
        self.doubtful += amount
        try:
            result = fn()
        except OutcomeUnknown:
            raise
        except Exception:
            self.doubtful -= amount
            raise
        self.doubtful -= amount
        self.least += amount
        return result

    @action
    def add_one(self, me):
        counter = Counter(me.store, "visits")
        self.seen.append(self.change(lambda: counter.add(timeout_s=30.0), 1))

    @action
    def add_many(self, me):
        counter = Counter(me.store, "visits")
        for _ in range(3):
            self.seen.append(self.change(lambda: counter.add(timeout_s=30.0), 1))
            me.pause(0.1)

    def finish(self, store):
        value = Counter(store, "visits").value()
        refuse(miscounted(value, known=self.least, unknown=self.doubtful))
        assert len(set(self.seen)) == len(self.seen), "two additions gave the same count"


class SequenceModel(Model):
    """Ids have no gap and no second owner, whoever dies when."""

    def __init__(self):
        super().__init__()
        self.taken = []

    @action
    def take(self, me):
        sequence = Sequence(me.store, "invoice")
        ids = sequence.take(lambda number: [Create(f"invoices/{number}", me.name.encode())], timeout_s=30.0)
        self.taken += [(number, me.name) for number in ids]
        me.pause(0.1)

    @action
    def take_three(self, me):
        sequence = Sequence(me.store, "invoice")
        ids = sequence.take(lambda number: [Create(f"invoices/{number}", me.name.encode())], count=3, timeout_s=30.0)
        self.taken += [(number, me.name) for number in ids]

    def finish(self, store):
        owners = {int(entry.key.rpartition("/")[2]): entry.value.decode() for entry in store.list("invoices")}
        last = Sequence(store, "invoice").last()
        refuse(gaps(owners, last))
        assert len({number for number, _ in self.taken}) == len(self.taken), "an id was given twice"
        assert all(owners[number] == name for number, name in self.taken)


def test_counter_keeps_its_rules_under_random_schedules():
    check(CounterModel)


def test_sequence_keeps_its_rules_under_random_schedules():
    check(SequenceModel)
