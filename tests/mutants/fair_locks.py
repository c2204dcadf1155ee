"""Defects of the fair primitives: locks, semaphores, latches, elections, and ``Once``."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "Lock",
        "a waiter believes a stale read without its own ticket",
        "primitives/fair/tickets.py",
        "            if position.name in names:\n",
        "            if stale_ok or position.name in names:\n",
        id_of("trials/schedules/lock", "lock_keeps_its_rules_under_random_schedules"),
    ),
    Defect(
        "Lock",
        "a ticket whose answer was lost is not taken over",
        "primitives/fair/tickets.py",
        "            found = await self._find_or_delete_later(nonce, session)\n",
        "            found = None\n",
        id_of("primitives/lock", "an_acquire_with_a_lost_answer_queues_exactly_once", on="memory-applied"),
    ),
    Defect(
        "Lock",
        "the fence of a hold does not check its ticket",
        "primitives/fair/tickets.py",
        "self.store.fence(ticket.created, Exists(ticket.key), session.fence)",
        "self.store.fence(ticket.created, session.fence)",
        id_of("primitives/latch", "the_fence_holds_while_leading_and_is_refused_after", on="memory"),
    ),
    Defect(
        "Lock",
        "a wait that timed out leaves its ticket behind",
        "primitives/fair/tickets.py",
        "        if not has_turn:\n            await queue.leave(position)\n",
        "        pass\n",
        id_of("primitives/lock", "a_timeout_names_the_holder_and_leaves_nothing_behind", on="memory"),
    ),
    Defect(
        "Lock",
        "a waiter takes its turn after its ticket was deleted",
        "primitives/fair/tickets.py",
        "            return await ask(self.store.get, position.ticket.key, stale_ok=True) is not None\n",
        "            return True\n",
        id_of("primitives/lock", "a_waiter_whose_ticket_is_deleted_by_hand_does_not_take_its_turn", on="memory"),
    ),
    Defect(
        "Lock",
        "a waiter acquires by an event from before its session ended",
        "primitives/fair/tickets.py",
        "    queue.raise_if_session_ended(position)\n    return has_turn\n",
        "    return has_turn\n",
        id_of(
            "trials/schedules/lock", "a_waiter_that_slept_past_its_session_is_told_instead_of_given_the_lock", on="8"
        ),
    ),
    Defect(
        "Lock",
        "a wait outlives its session",
        "primitives/waiting/waiter.py",
        "        self._cancel = session.on_end(self.cancel)\n",
        "        self._cancel = lambda: None\n",
        id_of("primitives/lock", "a_lost_session_ends_the_wait", on="memory"),
    ),
    Defect(
        "Lock",
        "a failed release is not retried",
        "primitives/fair/tickets.py",
        '            _log.info("%s: %s is not deleted yet: %s", self.what, ", ".join(keys), error)\n'
        "            self._delete_in_background(session, keys)\n",
        '            _log.info("%s: %s is not deleted yet: %s", self.what, ", ".join(keys), error)\n',
        id_of("primitives/lock", "a_release_that_does_not_get_through_goes_on_in_the_background", on="memory"),
    ),
    Defect(
        "GuardedWork",
        "a renewal withdraws a stop that the work has seen",
        "primitives/waiting/ownership.py",
        "            self._stop_with_warning()  # who",
        "            pass  # who",
        id_of(
            "primitives/work", "a_stop_that_the_work_has_seen_is_not_taken_back_though_its_thread_saw_the_renewal_only"
        ),
    ),
    Defect(
        "ReadWriteLock",
        "a downgrade is written before its holder stops being the writer",
        "primitives/fair/rwlock.py",
        "        await self.move_to_other_mode(held)  # first: others may read as soon as this is written\n"
        "        try:\n"
        "            await ask(self._store.commit, [held.position.fence], [Put(ticket.key, shared)])\n",
        "        try:\n"
        "            await ask(self._store.commit, [held.position.fence], [Put(ticket.key, shared)])\n"
        "            await self.move_to_other_mode(held)\n",
        id_of("trials/schedules/rwlock", "a_downgraded_writer_says_so_before_anybody_else_can_read"),
    ),
    Defect(
        "Semaphore",
        "a lease is taken without checking the size",
        "primitives/fair/semaphore.py",
        "self._store.commit, [At(size), position.fence], ",
        "self._store.commit, [position.fence], ",
        id_of("primitives/semaphore", "a_size_that_shrinks_between_look_and_write_gives_no_lease", on="memory"),
    ),
    Defect(
        "Semaphore",
        "a lease that lands between two reads counts as lost",
        "primitives/fair/semaphore.py",
        "            lease = await ask(self._store.get, self._lease_key(position))\n",
        "            pass\n",
        id_of(
            "primitives/semaphore", "a_lease_that_lands_between_the_reads_of_it_and_of_its_ticket_is_ours", on="memory"
        ),
    ),
    Defect(
        "LeaderLatch",
        "a leader is not revoked when its session ends",
        "primitives/fair/latch.py",
        '            self._revoke("its session has ended")\n',
        "            pass\n",
        id_of("primitives/latch", "a_session_that_ends_revokes_though_the_server_does_not_answer", on="memory"),
    ),
    Defect(
        "LeaderLatch",
        "a latch leaves the queue before its listeners have ended",
        "primitives/fair/latch.py",
        "        await self._announcer.wait_until_delivered(self._store.clock, _REVOKE_TIMEOUT_S)\n",
        "",
        id_of("primitives/latch", "revoked_listeners_end_before_the_next_candidate_leads", on="memory"),
    ),
    Defect(
        "Election",
        "a value is proclaimed without the fence of its term",
        "primitives/fair/election.py",
        "self._store.commit, [position.fence], [Put(position.ticket.key, encode(body))])",
        "self._store.commit, [], [Put(position.ticket.key, encode(body))])",
        id_of("primitives/election", "a_proclamation_after_the_term_is_refused_and_changes_nothing", on="memory"),
    ),
    Defect(
        "Once",
        "an outcome is written without the runner's fence",
        "primitives/once.py",
        "self._store.commit, [position.fence], [Create(self._outcome_key, body)])",
        "self._store.commit, [], [Create(self._outcome_key, body)])",
        id_of("primitives/once", "a_runner_whose_ticket_is_gone_records_nothing", on="memory"),
    ),
    Defect(
        "Once",
        "a runner does not look for an outcome when its turn comes",
        "primitives/once.py",
        "if entry is None and position is not None else entry\n",
        "if position is not None else entry\n",
        id_of("primitives/once", "it_runs_in_one_place_and_all_get_the_result", on="memory"),
    ),
)
