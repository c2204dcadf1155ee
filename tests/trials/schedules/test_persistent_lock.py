"""Persistent locks, one by one and by a keeper, under random schedules."""

from __future__ import annotations

from latchwork.primitives import LockKeeper, PersistentLock
from trials.schedules.harness import LOCK_TTL_S, PATIENCE_S, Model, action, check


class PersistentLockModel(Model):
    """At most one holds; whoever waits gets it in the end; whatever happened, the lock can be had afterwards."""

    @action
    def hold(self, me):
        lock = PersistentLock(me.store, "report", ttl_s=LOCK_TTL_S)
        with me.ended(lock):
            fence = me.patiently(lambda: lock.acquire(PATIENCE_S))
            self.claims.add(me, lambda: lock.is_held)
            self.writes.write(me, fence)
            me.pause()
            self.writes.write(me, fence)
            lock.release()

    @action
    def hold_long(self, me):
        lock = PersistentLock(me.store, "report", ttl_s=LOCK_TTL_S)
        with me.ended(lock):
            me.patiently(lambda: lock.acquire(PATIENCE_S))
            self.claims.add(me, lambda: lock.is_held)
            me.pause(3.0)
            self.writes.write(me, lock.fence)

    @action
    def hold_by_a_session(self, me):
        session = me.store.open_session(LOCK_TTL_S)
        with LockKeeper(me.store, ttl_s=LOCK_TTL_S, session=lambda: session) as keeper:
            held = me.patiently(lambda: keeper.acquire("report", PATIENCE_S))
            self.claims.add(me, lambda: held.is_held)
            self.writes.write(me, held.fence)
            me.pause(3.0)
            self.writes.write(me, held.fence)

    @action
    def try_once(self, me):
        with LockKeeper(me.store, ttl_s=LOCK_TTL_S) as keeper:
            held = keeper.try_acquire("report")
            if held is not None:
                self.claims.add(me, lambda: held.is_held)
                self.writes.write(me, held.fence)

    @action
    def restart(self, me):
        """An earlier life of a node leaves its lock behind, its work stopped; the later one adopts it."""
        first, stopped = LockKeeper(me.store, ttl_s=LOCK_TTL_S), []
        try:
            held = first.try_acquire("report")
            if held is None:
                return
            self.claims.add(me, lambda: not stopped and held.is_held)
            self.writes.write(me, held.fence)
        finally:
            stopped.append(True)
            first.close(release=False)
        me.pause(0.3)
        with LockKeeper(me.store, ttl_s=LOCK_TTL_S) as second:
            later = second.adopt(held.owner_id, timeout_s=PATIENCE_S).get("report")
            if later is not None:
                self.claims.add(me, lambda: later.is_held)
                self.writes.write(me, later.fence)
                me.pause()
                self.writes.write(me, later.fence)

    def finish(self, store):
        lock = PersistentLock(store, "report", ttl_s=LOCK_TTL_S)
        try:
            lock.acquire(PATIENCE_S)
        finally:
            lock.close()


def test_persistent_lock_keeps_its_rules_under_random_schedules():
    check(PersistentLockModel)
