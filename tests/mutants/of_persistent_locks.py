"""Defects of the persistent TTL lock: ``PersistentLock``, ``LockKeeper`` and their protocol."""

from __future__ import annotations

from mutants.defect import Defect, at, schedules

_SIMULATED = at("lock_simulation", "no_two_nodes_ever_believe_that_they_hold_the_lock", on="")

DEFECTS = (
    Defect(
        "PersistentLock",
        "a takeover does not check the owner that was seen silent",
        "primitives/lock_protocol.py",
        "return Take((At(entry), unchanged, *alive), ",
        "return Take((At(entry), *alive), ",
        at("lock_protocol", "a_takeover_checks_the_very_owner_that_was_seen_unchanged_and_removes_it", on=""),
    ),
    Defect(
        "PersistentLock",
        "a lock is taken for an owner that may be gone",
        "primitives/lock_protocol.py",
        "(Exists(me),) if me is not None else ()",
        "()",
        at("lock_protocol", "a_free_lock_is_taken_if_it_is_unchanged_and_we_live", on=""),
    ),
    Defect(
        "PersistentLock",
        "a takeover comes before the owner must have stopped",
        "primitives/lock_protocol.py",
        "TAKEOVER_FACTOR = 1.05",
        "TAKEOVER_FACTOR = 0.95",
        at("lock_protocol", "a_lock_of_a_living_owner_is_held_until_the_owner_must_have_stopped", on=""),
    ),
    Defect(
        "PersistentLock",
        "a lease counts from the answer of its renewal",
        "primitives/lock_protocol.py",
        "        self._counted = max(self._counted, sent_at)\n",
        "        self._counted = max(self._counted, sent_at, now)\n",
        at("lock_protocol", "a_lease_counts_from_the_send_of_its_last_confirmed_renewal", on=""),
    ),
    Defect(
        "PersistentLock",
        "a renewal that is only sent extends the lease",
        "primitives/lock_protocol.py",
        "        self._last_sent = max(self._last_sent, now)\n",
        "        self._last_sent = self._counted = max(self._last_sent, now)\n",
        at("lock_protocol", "a_renewal_that_is_not_confirmed_extends_nothing", on=""),
    ),
    Defect(
        "PersistentLock",
        "a lease that has run out comes back",
        "primitives/lock_protocol.py",
        "        if self.is_over(now):\n            return False\n",
        "",
        at("lock_protocol", "a_lease_that_has_run_out_stays_so", on=""),
    ),
    Defect(
        "PersistentLock",
        "an owner counts as silent since it was seen first",
        "primitives/lock_protocol.py",
        "        if known is not None and known.version == version:\n",
        "        if known is not None:\n",
        at("lock_protocol", "a_sighting_counts_from_the_first_response_that_showed_this_version", on=""),
    ),
    Defect(
        "PersistentLock",
        "a lease counts from the answer to the creation of its owner",
        "primitives/lock_life.py",
        "            self._table.create_owner(owner.id, self._record)\n            created = True\n",
        "            self._table.create_owner(owner.id, self._record)\n            created = True\n"
        "            owner.confirm(self._clock.now())\n",
        at("lock_keeper", "the_time_of_a_hold_counts_from_before_its_owner_was_sent"),
    ),
    Defect(
        "LockKeeper",
        "locks are released without a check that they are ours",
        "primitives/lock_table.py",
        "                    [At(held[name]) for name in batch], [Put(self.lock_key(name), FREE) for name in batch]\n",
        "                    [], [Put(self.lock_key(name), FREE) for name in batch]\n",
        (
            *at("persistent_lock", "a_with_whose_lock_was_lost_does_not_release_the_next_holders"),
            *schedules("persistent_lock", "persistent_lock"),
        ),
    ),
    Defect(
        "LockKeeper",
        "an owner is renewed although it was taken over",
        "primitives/lock_life.py",
        "self._pipeline.commit([Exists(key)], [Put(key, self._record.encode())])",
        "self._pipeline.commit([], [Put(key, self._record.encode())])",
        at("lock_keeper", "losing_the_owner_is_told_once_and_the_keeper_goes_on"),
    ),
    Defect(
        "LockKeeper",
        "each lock is renewed by a write of its own",
        "primitives/lock_life.py",
        "self._pipeline.commit([Exists(key)], [Put(key, self._record.encode())])",
        "[self._pipeline.commit([Exists(key)], [Put(key, self._record.encode())]) for _ in owner.held or [0]][-1]",
        at("lock_keeper", "more_locks_need_no_more_renewals"),
    ),
    Defect(
        "LockKeeper",
        "a write of a lock that may land late is forgotten",
        "primitives/lock_holds.py",
        "            self._doubts.update({doubt.name: doubt for doubt in doubts})\n",
        "            del doubts\n",
        at("lock_keeper", "a_try_with_a_lost_answer_never_leaves_a_lock_behind", on="memory-applied later"),
    ),
    Defect(
        "LockKeeper",
        "nobody is told that locks were lost",
        "primitives/lock_life.py",
        "        self._on_lost(names)\n",
        "",
        at("lock_keeper", "losing_the_owner_is_told_once_and_the_keeper_goes_on"),
    ),
    Defect(
        "LockKeeper",
        "nobody is told that a renewal failed",
        "primitives/lock_life.py",
        "        self._on_failed(error, owner.remaining_s())\n",
        "",
        at("lock_keeper", "a_renewal_that_fails_is_told_with_the_time_that_is_left"),
    ),
    Defect(
        "LockKeeper",
        "two threads of one keeper have the same lock",
        "primitives/lock_holds.py",
        "            claimed = [name for name in names if not self._is_ours(name)]\n",
        "            claimed = list(names)\n",
        at("lock_keeper", "a_lock_is_exclusive_among_threads_of_one_keeper"),
    ),
    Defect(
        "PersistentLock",
        "sightings are judged by a clock that runs twice as fast",
        "primitives/lock_protocol.py",
        "        return self.since + self.ttl_s * TAKEOVER_FACTOR\n",
        "        return self.since + self.ttl_s / 2\n",
        _SIMULATED,
    ),
)
