"""Defects of the store: sessions and leases, answers, watches and mirrors, transactions, cancelled calls."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "Session",
        "a late renewal revives an expired session",
        "store/lease.py",
        "self._lease.confirmed(future.result(), self._clock.now())",
        "self._lease.confirmed(future.result(), -math.inf)",
        id_of(
            "store/session_thread", "an_answer_between_the_deadline_and_the_turn_of_its_thread_does_not_bring_it_back"
        ),
    ),
    Defect(
        "Session",
        "a session goes on after the server reported its end",
        "store/session.py",
        "        if isinstance(error, SessionLost):\n            self._renewer.end()\n",
        "",
        id_of("store/session_thread", "the_server_saying_it_is_gone_loses_it_at_once"),
    ),
    Defect(
        "Session",
        "a renewal counts before a later one confirms it",
        "store/lease.py",
        "if sent + self._gap_s <= (seen if renews else renewed)]",
        "if sent <= (seen if renews else renewed)]",
        id_of("store/deadline", "with_a_gap_a_renewal_counts_only_when_a_later_one_was_confirmed"),
    ),
    Defect(
        "Session",
        "the end of a session wakes none of its waiters",
        "store/session.py",
        "        while enders:\n            self._tell_end([enders.pop()])\n",
        "",
        id_of("store/session_thread", "what_waits_is_told_of_either_end_exactly_once", on="close"),
    ),
    Defect(
        "Session",
        "the deadline counts from the answer of a renewal",
        "store/lease.py",
        "self._lease.confirmed(future.result(), self._clock.now())",
        "self._lease.confirmed(self._clock.now() + 0.0 * future.result(), self._clock.now())",
        id_of("store/session_thread", "the_deadline_counts_from_the_send_though_the_answer_comes_late"),
    ),
    Defect(
        "Fence",
        "a fence checks nothing",
        "store/store.py",
        "Fence(token, tuple(self._scope.checks(checks)))",
        "Fence(token, tuple(self._scope.checks(checks))[:0])",
        id_of("primitives/latch", "the_fence_holds_while_leading_and_is_refused_after", on="memory"),
    ),
    Defect(
        "Store",
        "a write without an answer is reported as not applied",
        "store/answers.py",
        '            return OutcomeUnknown(f"{told}; it may have been applied")\n',
        '            return Unavailable(f"{told}; it may have been applied")\n',
        id_of("store/answers", "a_write_without_an_answer_is_unknown_and_a_read_is_unavailable"),
    ),
    Defect(
        "Store",
        "an event loop forgets that the answer to a write was lost",
        "store/driving/loop.py",
        "            if isinstance(raised, OutcomeUnknown):\n",
        "            if False:\n",
        id_of(
            "store/lost_answers",
            "a_call_never_says_not_applied_after_a_write_whose_answer_was_lost",
            on="WorkQueue.put-loop",
        ),
    ),
    Defect(
        "Watch",
        "a change during a listener's run is not delivered",
        "store/dispatch.py",
        "                self._again = True\n                return\n",
        "                return\n",
        id_of("store/dispatch", "a_signal_during_a_run_causes_exactly_one_more_run"),
    ),
    Defect(
        "Watch",
        "a deletion is lost behind an unread change of its key",
        "store/watch.py",
        "            self._pending.pop(change.key, None)\n            self._pending[change.key] = change\n",
        "            if self._pending.pop(change.key, None) is None or change.entry is not None:\n"
        "                self._pending[change.key] = change\n",
        id_of("store/feed", "changes_that_wait_are_merged_per_key_in_order_of_the_last_change"),
    ),
    Defect(
        "Mirror",
        "a key goes back to an older state",
        "store/feed.py",
        "(before.version == entry.version or entry.token < before.token)",
        "before.version == entry.version",
        id_of("store/feed", "a_key_never_moves_backwards"),
    ),
    Defect(
        "Mirror",
        "keys that were deleted during a gap stay",
        "store/feed.py",
        "self._apply([*_missing(self.known, event.entries), *(Change(e.key, e) for e in event.entries)])",
        "self._apply(Change(e.key, e) for e in event.entries)",
        id_of("store/feed", "a_new_snapshot_becomes_the_difference_to_what_was_known"),
    ),
    Defect(
        "Transaction",
        "a commit does not check the entries that were read",
        "store/transaction.py",
        "                checks.append(At(entry))\n",
        "                continue\n",
        id_of("store/transaction", "what_was_read_is_checked_and_what_another_wrote_meanwhile_is_not_lost"),
    ),
    Defect(
        "Transaction",
        "a commit of unknown outcome is repeated",
        "store/store.py",
        "            except Conflict as error:\n                if attempt == attempts:\n",
        "            except Exception as error:\n                if attempt == attempts:\n",
        id_of("store/transaction", "only_a_refused_commit_is_tried_again", on="error0"),
    ),
    Defect(
        "Transaction",
        "a commit does not bump a guard that it only read",
        "store/transaction.py",
        "        if ops and self._guard is not None and self._guard not in self._written:\n",
        "        if not ops and self._guard is not None and self._guard in self._written:\n",
        id_of("store/transaction", "a_guard_that_is_only_read_is_written_all_the_same"),
    ),
    Defect(
        "Event loop",
        "a cancelled call runs none of its undo callbacks",
        "store/driving/helper.py",
        "        if on.is_over:\n            attempt.undo()\n        else:",
        "        if not on.is_over:",
        id_of(
            "aio/cancellation", "a_call_that_is_cancelled_at_any_await_leaves_nothing_behind", on="memory-waiting_lock"
        ),
    ),
    Defect(
        "Event loop",
        "a release that is cancelled at once releases nothing",
        "store/driving/helper.py",
        "        if ends and not begun and not isinstance(error, GeneratorExit):\n",
        "        if False:\n",
        id_of("aio/loops", "what_ends_something_is_done_all_the_same_if_it_is_cancelled_before_it_has_noted_anything"),
    ),
    Defect(
        "Event loop",
        "a session whose opening is cancelled stays open",
        "store/driving/loop.py",
        "            if future.done() and not future.cancelled():\n",
        "            if False:\n",
        id_of("aio/loops", "what_was_opened_is_closed_if_its_task_was_cancelled_meanwhile", on="memory-late"),
    ),
)
