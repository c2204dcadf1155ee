"""Defects of ``LeaderLatch`` and ``Election``; what they share with locks is among the defects of those."""

from __future__ import annotations

from mutants.defect import Defect, at, schedules

DEFECTS = (
    Defect(
        "LeaderLatch",
        "a leader learns of the end of its session when its thread comes round",
        "primitives/fair/latch.py",
        '            self._revoke("its session has ended")\n',
        "            pass\n",
        at("latch", "a_session_that_ends_revokes_though_the_server_does_not_answer"),
    ),
    Defect(
        "LeaderLatch",
        "the next candidate leads before our listeners know",
        "primitives/fair/latch.py",
        "        await self._announcer.settle(self._store.clock, _REVOKE_TIMEOUT_S)\n",
        "",
        at("latch", "revoked_listeners_end_before_the_next_candidate_leads"),
    ),
    Defect(
        "LeaderLatch",
        "listeners hear twice in a row that we are elected",
        "primitives/fair/latch.py",
        "or (led is not None and led.fence is place.fence):",
        "or (led is not None and led is place.fence):",
        at("latch", "a_leader_that_looks_at_the_queue_again_is_not_elected_again"),
    ),
    Defect(
        "LeaderLatch",
        "work goes on although its leader has left",
        "primitives/fair/latch.py",
        "        led.end()\n",
        "",
        at("latch", "leaving_tells_the_work_to_stop_at_once"),
    ),
    Defect(
        "LeaderLatch",
        "a candidate whose ticket was deleted goes on leading",
        "primitives/fair/latch.py",
        "everyone, waiter, forever) and not self._leaving:\n"
        "                            raise self._queue.gone(place)\n",
        "everyone, waiter, forever):\n                            await waiter.pause(None)\n",
        at("latch", "a_ticket_deleted_by_hand_revokes_and_the_candidate_queues_again"),
    ),
    Defect(
        "LeaderLatch",
        "a candidate that lost its place does not queue again",
        "primitives/fair/latch.py",
        "        if isinstance(error, OwnershipLost):\n            self._lose_place()\n",
        "",
        at("latch", "a_ticket_deleted_by_hand_revokes_and_the_candidate_queues_again"),
    ),
    Defect(
        "Election",
        "a value is proclaimed without the term's fence",
        "primitives/fair/election.py",
        "self._store.commit, [place.fence], [Put(place.ticket.key, write_body(body))])",
        "self._store.commit, [], [Put(place.ticket.key, write_body(body))])",
        at("election", "a_proclamation_after_the_term_is_refused_and_changes_nothing"),
    ),
    Defect(
        "Election",
        "an observer tells the last candidate for the leader",
        "primitives/fair/leader.py",
        "self._tickets[min(self._tickets)]",
        "self._tickets[max(self._tickets)]",
        at("election", "an_observer_sees_every_leader_and_value_that_lasts"),
    ),
    Defect(
        "Election",
        "an observer sees the leader of a nested election",
        "primitives/fair/leader.py",
        'elif is_ticket(change.key) and change.key.rpartition("/")[0] == self._name:',
        "elif is_ticket(change.key):",
        ("primitives/test_nested_names.py::test_what_is_used_under_nested_names_does_not_count[election]",),
    ),
    Defect(
        "Election",
        "run does not resign",
        "primitives/fair/election.py",
        "            finally:\n                await steps_of(term.close)()\n",
        "            finally:\n                del work\n",
        at("election", "run_gives_the_result_and_resigns"),
    ),
    Defect(
        "Election",
        "campaigns that were called off stay in the queue",
        "primitives/fair/turns.py",
        "        if not has_turn:\n            await queue.leave(place)\n",
        "        pass\n",
        (*at("election", "closing_resigns_and_calls_campaigns_off"), *schedules("election", "election")),
    ),
)
