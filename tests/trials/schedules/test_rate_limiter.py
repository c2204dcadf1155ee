"""Rate limiters under random schedules: never more per interval, and everybody gets through."""

from __future__ import annotations

from latchwork.primitives import RateLimiter
from trials.judges.primitive import too_many
from trials.schedules.harness import PATIENCE_S, Model, action, check, refuse

PERMITS, INTERVAL_S = 2, 3.0


class RateLimiterModel(Model):
    """In no interval of three seconds do more than two acquisitions return; whoever waits gets through."""

    def __init__(self):
        super().__init__()
        self.returned = []

    def acquire(self, me, times):
        with RateLimiter(me.store, "mail", permits=PERMITS, interval_s=INTERVAL_S, label=me.name) as limiter:
            for _ in range(times):
                me.patiently(lambda: limiter.acquire(timeout_s=PATIENCE_S))
                self.note(me)

    def note(self, me):
        self.returned.append(me.sim.elapsed_s)
        if not self.freezes:  # a frozen process returns whenever it wakes
            refuse(too_many(self.returned, PERMITS, INTERVAL_S - 1e-6))

    @action
    def acquire_one(self, me):
        self.acquire(me, 1)

    @action
    def acquire_three(self, me):
        self.acquire(me, 3)

    def finish(self, store):
        limiter = RateLimiter(store, "mail", permits=PERMITS, interval_s=INTERVAL_S)
        assert limiter.waiters() == [], "a ticket was left behind"
        assert limiter.issued() >= len(self.returned)


def test_rate_limiter_keeps_its_rules_under_random_schedules():
    check(RateLimiterModel)
