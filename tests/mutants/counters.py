"""Defects of ``Counter``, ``Sequence`` and ``RateLimiter``."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "Counter",
        "a change of unknown outcome is repeated",
        "primitives/numbers/shared_number.py",
        "            self._unknown = UnconfirmedChange(current, after, error)\n",
        "            del error\n",
        id_of("primitives/counter", "a_change_with_a_lost_answer_is_counted_once", on="memory-outcomes0"),
    ),
    Defect(
        "Counter",
        "a change does not check the value that it read",
        "primitives/numbers/shared_number.py",
        "self._store.commit, [*checks, current.check], ",
        "self._store.commit, [*checks], ",
        id_of("primitives/counter", "a_change_of_another_between_read_and_write_is_not_lost", on="memory"),
    ),
    Defect(
        "Sequence",
        "an id is taken before its record is written",
        "primitives/numbers/shared_number.py",
        "[*checks, current.check], [put, *ops])\n",
        "[*checks, current.check], [put])\n        _ = ops and await ask(self._store.commit, [], list(ops))\n",
        id_of("primitives/sequence", "a_record_that_is_there_already_is_a_conflict_and_takes_no_id", on="memory"),
    ),
    Defect(
        "RateLimiter",
        "a permit is used although its answer came late",
        "primitives/numbers/rate_limiter.py",
        "            if took_s <= permits.slack_s:\n",
        "            if took_s >= 0.0:\n",
        id_of("primitives/rate_limiter", "a_permit_whose_answer_comes_late_is_not_used", on="memory"),
    ),
    Defect(
        "RateLimiter",
        "two callers take the same permit",
        "primitives/numbers/rate_limiter.py",
        "self._store.commit, [At(entry)], [put, *ops])",
        "self._store.commit, [], [put, *ops])",
        id_of("primitives/rate_limiter", "two_that_see_the_same_free_permit_do_not_both_get_it", on="memory"),
    ),
)
