"""Defects of ``Counter``, ``Sequence`` and ``RateLimiter``."""

from __future__ import annotations

from mutants.defect import Defect, at

DEFECTS = (
    Defect(
        "Counter",
        "a change of unknown outcome is made again",
        "primitives/numbers/cell.py",
        "            self._unknown = Try(now, after, error)\n",
        "            del error\n",
        at("counter", "a_change_with_a_lost_answer_is_counted_once", on="memory-outcomes0"),
    ),
    Defect(
        "Counter",
        "a change does not check what it read",
        "primitives/numbers/cell.py",
        "self._store.commit, [*checks, now.check], ",
        "self._store.commit, [*checks], ",
        at("counter", "a_change_of_another_between_read_and_write_is_not_lost"),
    ),
    Defect(
        "Counter",
        "a change that nothing tells of any more counts as not made",
        "primitives/numbers/cell.py",
        "    return None if since < 0 or since > len(now.recent) else False\n",
        "    return False if since else False\n",
        at("counter", "after_too_many_changes_of_others_it_is_said_to_be_unknown"),
    ),
    Defect(
        "Counter",
        "a change is made without the fence",
        "primitives/numbers/counter.py",
        "    return () if fence is None else (fence,)\n",
        "    return ()\n",
        at("counter", "under_a_fence_nothing_is_changed_once_it_is_broken"),
    ),
    Defect(
        "Counter",
        "a change under a broken fence is tried for as long as others change the number",
        "primitives/numbers/cell.py",
        "any(isinstance(one, Fence) for one in error.failed)",
        "not error.failed",
        at("counter", "a_broken_fence_refuses_at_once_however_often_others_change_it"),
    ),
    Defect(
        "Counter",
        "compare and set writes whatever it finds",
        "primitives/numbers/counter.py",
        "value if now == expected else None",
        "value if now is not None else expected",
        at("counter", "compare_and_set_changes_what_is_expected_and_nothing_else"),
    ),
    Defect(
        "Sequence",
        "an id is taken before its record is written",
        "primitives/numbers/cell.py",
        "[Put(self._key, now.changed(after, nonce)), *ops])\n",
        "[Put(self._key, now.changed(after, nonce))])\n"
        "        _ = ops and await ask(self._store.commit, [], list(ops))\n",
        at("sequence", "a_record_that_is_there_already_is_a_conflict_and_takes_no_id"),
    ),
    Defect(
        "Sequence",
        "an id is taken without a record",
        "primitives/numbers/sequence.py",
        "    if not ops:\n        raise ValueError(",
        "    if ops is None:\n        raise ValueError(",
        at("sequence", "an_id_without_a_record_is_refused"),
    ),
    Defect(
        "Sequence",
        "an id is taken without the fence",
        "primitives/numbers/sequence.py",
        "        checks = () if fence is None else (fence,)\n",
        "        checks = ()\n",
        at("sequence", "under_a_broken_fence_no_id_is_taken"),
    ),
    Defect(
        "RateLimiter",
        "a permit whose answer came late is used",
        "primitives/numbers/rate_limiter.py",
        "            if took_s <= permits.slack_s:\n",
        "            if took_s >= 0.0:\n",
        at("rate_limiter", "a_permit_whose_answer_comes_late_is_not_used"),
    ),
    Defect(
        "RateLimiter",
        "two take the same permit",
        "primitives/numbers/rate_limiter.py",
        "self._store.commit, [At(entry)], [put, *ops])",
        "self._store.commit, [], [put, *ops])",
        at("rate_limiter", "two_that_see_the_same_free_permit_do_not_both_get_it"),
    ),
    Defect(
        "RateLimiter",
        "permits that were given by others count as old at the first look",
        "primitives/numbers/rate_window.py",
        "            self._old = max(0, permits.given - permits.limit)\n",
        "            self._old = permits.given\n",
        at("rate_limiter", "a_window_takes_permits_that_it_did_not_see_given_for_new", on=""),
    ),
    Defect(
        "RateLimiter",
        "a permit's age counts from when its sender says that it was sent",
        "primitives/numbers/rate_limiter.py",
        "            self._learn(done.entries[0])\n            took_s = clock.now() - sent_at\n",
        "            took_s = clock.now() - sent_at\n"
        "            with self._lock:\n"
        "                self._window.learn(Permits.of(done.entries[0]), done.entries[0].created, sent_at - 1e6)\n",
        at("rate_limiter", "so_many_are_given_at_once_and_no_more"),
    ),
    Defect(
        "RateLimiter",
        "the slack is left out of a permit's life",
        "primitives/numbers/rate_window.py",
        "    return (permits.interval_s + permits.slack_s) * 1.001\n",
        "    return permits.interval_s * 1.001\n",
        at("rate_limiter", "a_window_gives_as_many_as_the_limit_and_then_waits_for_the_oldest", on=""),
    ),
    Defect(
        "RateLimiter",
        "a limiter that was made anew gives at once",
        "primitives/numbers/rate_window.py",
        "            self._old = -permits.limit\n",
        "            self._old = 0\n",
        at("rate_limiter", "a_limiter_that_was_made_anew_gives_nothing_for_an_interval", on=""),
    ),
)
