"""Defects of locks that outlive their session: ``PersistentLock``, ``LockKeeper`` and their protocol."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "PersistentLock",
        "a takeover does not check that its owner is still silent",
        "primitives/leased/protocol.py",
        "        return (At.of(owner_key, self.version), *no_liveness_key)\n",
        "        return no_liveness_key\n",
        id_of("primitives/lock_protocol", "a_takeover_checks_the_very_owner_that_was_seen_unchanged_and_removes_it"),
    ),
    Defect(
        "PersistentLock",
        "a lock is taken without checking our own owner record",
        "primitives/leased/protocol.py",
        "(Exists(own_key),) if own_key is not None else ()",
        "()",
        id_of("primitives/lock_protocol", "a_free_lock_is_taken_if_it_is_unchanged_and_we_live"),
    ),
    Defect(
        "PersistentLock",
        "an expired lease is revived",
        "store/lease.py",
        "        if self.has_ended(now):\n            return False\n",
        "",
        id_of("primitives/lock_protocol", "a_lease_that_has_run_out_stays_so"),
    ),
    Defect(
        "LockKeeper",
        "a release deletes a lock that another owner has taken",
        "primitives/leased/table.py",
        "            checks = [At(held[name]) for name in batch]\n",
        "            checks: list[At] = []\n",
        id_of("primitives/lock_keeper", "releasing_a_lock_that_was_lost_leaves_it_to_whoever_has_it_now", on="memory"),
    ),
    Defect(
        "LockKeeper",
        "a renewal recreates an owner that was taken over",
        "primitives/leased/table.py",
        'self.store.start_call("commit", [Exists(key)], [Put(key, record.to_bytes())])',
        'self.store.start_call("commit", [], [Put(key, record.to_bytes())])',
        id_of("primitives/adopting", "an_earlier_life_whose_watch_is_silent_is_told_by_its_next_renewal", on="memory"),
    ),
    Defect(
        "LockKeeper",
        "a takeover trusts a stale watch that the owner's liveness key is gone",
        "primitives/leased/protocol.py",
        "(Absent(liveness_key(owner_key)),) if self.session else ()",
        "()",
        id_of(
            "primitives/lock_protocol",
            "a_lock_is_taken_a_grace_after_its_owner_was_seen_without_its_sign_if_it_still_is",
        ),
    ),
    Defect(
        "LockKeeper",
        "a renewal does not check the liveness key of its owner",
        "primitives/leased/table.py",
        "checks = [Exists(self.owner_key(owner)), Exists(self.liveness_key(owner))]",
        "checks = [Exists(self.owner_key(owner))]",
        id_of(
            "primitives/shared_renewals",
            "an_owner_that_lost_its_liveness_key_goes_on_although_its_watch_is_silent",
            on="memory",
        ),
    ),
    Defect(
        "LockKeeper",
        "an adopted owner keeps its liveness key, so its process does not notice",
        "primitives/leased/table.py",
        'self._build_detach_ops(owner, replace(record, session="")))',
        'self._build_detach_ops(owner, replace(record, session=""))[:1])',
        id_of(
            "primitives/shared_renewals",
            "an_owner_that_lost_its_liveness_key_goes_on_although_its_watch_is_silent",
            on="memory",
        ),
    ),
    Defect(
        "LockKeeper",
        "a sweep does not check that an owner has no liveness key",
        "primitives/leased/table.py",
        "seen.build_unchanged_checks(self.owner_key(owner))",
        "seen.build_unchanged_checks(self.owner_key(owner))[:1]",
        id_of("primitives/shared_renewals", "a_sweep_is_refused_while_the_liveness_key_exists", on="memory"),
    ),
    Defect(
        "LockKeeper",
        "a waiter trusts a liveness key whose removal its watch did not show",
        "primitives/leased/maintenance.py",
        "self.table.find_removed_owners(self.waits.list_blocking_owners())",
        "self.table.find_removed_owners(self._find_unwatched_owners())",
        id_of(
            "primitives/shared_renewals",
            "an_liveness_key_whose_removal_no_watch_shows_blocks_no_lock",
            on="memory-waits before",
        ),
    ),
    Defect(
        "LockKeeper",
        "a try trusts a liveness key whose removal its watch did not show",
        "primitives/leased/table.py",
        "return seen is None or seen.dead_at == math.inf",
        "return seen is None",
        id_of(
            "primitives/shared_renewals",
            "an_liveness_key_whose_removal_no_watch_shows_blocks_no_lock",
            on="memory-comes after",
        ),
    ),
    Defect(
        "LockKeeper",
        "a lost owner leaves its liveness key",
        "primitives/leased/maintenance.py",
        "for owner in self.state.find_lost_owners_with_liveness_key():",
        "for owner in list[LockOwner]():",
        id_of(
            "primitives/shared_renewals",
            "a_lost_owner_does_not_keep_its_locks_by_a_session_that_lives",
            on="memory",
        ),
    ),
    Defect(
        "LockKeeper",
        "a write that may land late is forgotten",
        "primitives/leased/acquirer.py",
        "                unconfirmed.append(result)\n",
        "                pass\n",
        id_of(
            "primitives/lock_keeper", "a_try_with_a_lost_answer_never_leaves_a_lock_behind", on="memory-applied later"
        ),
    ),
    Defect(
        "LockKeeper",
        "an interrupted release waits for the next chores",
        "primitives/leased/maintenance.py",
        "with undone_if_interrupted(self._cleanup_drain.signal):",
        "with undone_if_interrupted(bool):",
        id_of(
            "primitives/lock_keeper",
            "a_release_that_is_interrupted_is_done_by_the_next_chores_and_not_a_quarter_of_a_ttl_later",
            on="memory",
        ),
    ),
)
