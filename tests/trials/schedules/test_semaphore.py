"""Leases of a semaphore under random schedules."""

from __future__ import annotations

from latchwork.errors import WaitTimeout
from latchwork.primitives import Semaphore
from trials.schedules.harness import PATIENCE_S, Claims, Model, action, check


class SemaphoreModel(Model):
    """At most two hold leases; whoever waits gets one in the end; no lease outlives its holder."""

    actors = (3, 4)

    def __init__(self):
        super().__init__()
        self.claims = Claims(most=2)

    @action
    def hold(self, me):
        with me.ended(Semaphore(me.store, "scanner", leases=2, label=me.name)) as semaphore:
            me.patiently(lambda: semaphore.acquire(PATIENCE_S))
            self.claims.add(me, lambda: semaphore.is_held)
            me.pause()
            semaphore.release()

    @action
    def hold_long(self, me):
        with me.ended(Semaphore(me.store, "scanner", leases=2, label=me.name)) as semaphore:
            me.patiently(lambda: semaphore.acquire(PATIENCE_S))
            self.claims.add(me, lambda: semaphore.is_held)
            me.pause(3.0)

    @action
    def wait_briefly(self, me):
        with me.ended(Semaphore(me.store, "scanner", leases=2, label=me.name)) as semaphore:
            try:
                semaphore.acquire(0.5)
            except WaitTimeout:
                return
            self.claims.add(me, lambda: semaphore.is_held)

    def finish(self, store):
        semaphore = Semaphore(store, "scanner", leases=2)
        assert semaphore.holders() == [], "a lease was left behind"
        assert semaphore.waiters() == [], "a ticket was left behind"


def test_semaphore_keeps_its_rules_under_random_schedules():
    check(SemaphoreModel)
