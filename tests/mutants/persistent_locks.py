"""Defects of locks that outlive their session: ``PersistentLock``, ``LockKeeper`` and their protocol."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "PersistentLock",
        "a takeover does not check that its owner is still silent",
        "primitives/leased/protocol.py",
        "(At(entry), unchanged, *no_alive_key, *alive), ",
        "(At(entry), *no_alive_key, *alive), ",
        id_of("primitives/lock_protocol", "a_takeover_checks_the_very_owner_that_was_seen_unchanged_and_removes_it"),
    ),
    Defect(
        "PersistentLock",
        "a lock is taken without checking our own owner record",
        "primitives/leased/protocol.py",
        "(Exists(me),) if me is not None else ()",
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
        'self.store.start_call("commit", [Exists(key)], [Put(key, record.encode())])',
        'self.store.start_call("commit", [], [Put(key, record.encode())])',
        id_of("primitives/adopting", "an_earlier_life_whose_watch_is_silent_is_told_by_its_next_renewal", on="memory"),
    ),
    Defect(
        "LockKeeper",
        "a takeover trusts a stale watch that the owner's alive key is gone",
        "primitives/leased/protocol.py",
        "(Absent(alive_key(owner_key)),) if now < seen.silent_at else ()",
        "()",
        id_of(
            "primitives/lock_protocol",
            "a_lock_is_taken_a_grace_after_its_owner_was_seen_without_its_sign_if_it_still_is",
        ),
    ),
    Defect(
        "LockKeeper",
        "a renewal does not check the alive key of its owner",
        "primitives/leased/table.py",
        "checks = [Exists(key), Exists(self.alive_key(owner))]",
        "checks = [Exists(key)]",
        id_of(
            "primitives/shared_renewals",
            "a_renewal_by_the_session_is_refused_once_the_owner_goes_on_without_it",
            on="memory",
        ),
    ),
    Defect(
        "LockKeeper",
        "a write that may land late is forgotten",
        "primitives/leased/acquirer.py",
        "                doubts.append(what)\n",
        "                pass\n",
        id_of(
            "primitives/lock_keeper", "a_try_with_a_lost_answer_never_leaves_a_lock_behind", on="memory-applied later"
        ),
    ),
    Defect(
        "LockKeeper",
        "an interrupted release waits for the next chores",
        "primitives/leased/core.py",
        "with undone_if_interrupted(self._cleanup_drain.signal):",
        "with undone_if_interrupted(bool):",
        id_of(
            "primitives/lock_keeper",
            "a_release_that_is_interrupted_is_done_by_the_next_chores_and_not_a_quarter_of_a_ttl_later",
            on="memory",
        ),
    ),
)
