"""Once under random schedules: one outcome for all, one runner at a time."""

from __future__ import annotations

from latchwork.errors import OnceFailed
from latchwork.primitives import Once
from trials.schedules.harness import PATIENCE_S, Model, ModelBroken, action, check


class OnceModel(Model):
    """Everybody gets the same outcome, the one that is stored; at most one runs it that was not told to stop."""

    def __init__(self):
        super().__init__()
        self.runs = 0
        self.outcomes = set()

    def once(self, me, seconds):
        def migrate(work):
            self.runs += 1
            mine = f"run {self.runs} by {me.name}".encode()
            running = [True]
            self.claims.add(me, lambda: running[0] and not work.is_stopped)
            try:
                self.writes.write(me, work.fence)
                work.wait(seconds)
                work.raise_if_stopped()
                self.writes.write(me, work.fence)
            finally:
                running[0] = False
            return mine

        with Once(me.store, "migrate", max_starts=10, label=me.name) as once:
            try:
                outcome = me.patiently(lambda: once.run(migrate, timeout_s=PATIENCE_S))
            except OnceFailed:
                outcome = "failed"
            self.outcomes.add(outcome)

    @action
    def run(self, me):
        self.once(me, 0.5)

    @action
    def run_long(self, me):
        self.once(me, 3.0)

    def finish(self, store):
        once = Once(store, "migrate")
        try:
            outcome = once.outcome()
        except OnceFailed:
            outcome = "failed"
        if self.outcomes - {outcome}:
            raise ModelBroken(f"{self.outcomes - {outcome}} was told, {outcome!r} is stored")
        assert once.runner() is None, "a ticket was left behind"


def test_once_keeps_its_rules_under_random_schedules():
    check(OnceModel)
