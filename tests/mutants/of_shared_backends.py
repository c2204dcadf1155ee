"""Defects of what the backends share: futures, pauses, URLs, what is told of work in several transactions."""

from __future__ import annotations

from mutants.defect import Defect, of

DEFECTS = (
    Defect(
        "Backends",
        "a tree that was deleted by halves is told as not touched",
        "backends/outcomes.py",
        "    return type(error)(told) if isinstance(error, _KEPT) else OutcomeUnknown(told)\n",
        "    return type(error)(told)\n",
        of("backends/zookeeper/silence", "a_tree_that_was_deleted_in_part_is_not_called_unchanged"),
    ),
    Defect(
        "Backends",
        "a pause that is under way when the store closes never ends",
        "backends/timer.py",
        '        for future in waiting:\n            reject(future, Closed("the store was closed"))\n',
        "",
        of("backends/zookeeper/silence", "a_pause_ends_with_an_error_when_its_timer_is_closed_before_or_after"),
    ),
    Defect(
        "Backends",
        "steps that wait for a future that fails go on as if it had not",
        "backends/futures.py",
        "    return steps.throw(error) if error is not None else steps.send(ready.result())\n",
        "    return steps.send(None if error is not None else ready.result())\n",
        of("store/futures", "steps_go_on_with_each_result_and_see_each_error"),
    ),
    Defect(
        "Backends",
        "a future that was cancelled takes a value",
        "backends/futures.py",
        "            super().set_result(result)",
        "            self._value, self._has_ended = result, True",
        of("store/futures", "cancelled_outcome_takes_no_value"),
    ),
    Defect(
        "Backends",
        "the password is in the URL that is told and logged",
        "backends/url.py",
        'place = f"{_credentials(self.user, self.password)}{join_hosts(self.hosts)}/{root}"',
        'place = f"{self.user}:{self.password}@{join_hosts(self.hosts)}/{root}"',
        of("backends/url", "password_shows_neither_in_repr_nor_in_redacted"),
    ),
)
