"""Defects of the embedded backend: memory and SQLite."""

from __future__ import annotations

from mutants.defect import Defect, of

DEFECTS = (
    Defect(
        "SQLite",
        "a file that another process has locked is not waited for",
        "backends/embedded/connection.py",
        "            if not is_busy(error):\n                raise\n            if left_s <= 0:\n",
        "            if not is_busy(error):\n                raise\n            if left_s is not None:\n",
        of("backends/embedded/processes", "checked_increments_of_several_processes_add_up"),
    ),
    Defect(
        "SQLite",
        "a commit that the disk cut short is told as not applied",
        "backends/embedded/connection.py",
        '            if "I/O" not in str(error):\n                raise\n            raise OutcomeUnknown(\n',
        '            if "I/O" not in str(error):\n                raise\n            raise Unavailable(\n',
        of(
            "backends/embedded/trouble",
            "disk_that_fails_while_committing_leaves_the_outcome_unknown",
            on="True",
        ),
    ),
    Defect(
        "SQLite",
        "who is told nothing looks as often as those who hand over to each other",
        "backends/embedded/watches.py",
        "            return _POLL_BUSY_S if now < self._ours_until else _POLL_OTHERS_S\n",
        "            return _POLL_BUSY_S\n",
        of(
            "backends/embedded/watches",
            "a_store_that_is_told_nothing_looks_less_often_than_those_who_hand_over_to_each_other",
        ),
    ),
    Defect(
        "SQLite",
        "a file that was replaced is written all the same",
        "backends/embedded/connection.py",
        "                self.check()\n                result = work(conn)\n",
        "                result = work(conn)\n",
        of(
            "backends/embedded/trouble",
            "deleted_or_replaced_file_is_noticed_before_anything_is_written_to_it",
            on="True",
        ),
    ),
    Defect(
        "SQLite",
        "sessions of an earlier boot live on",
        "backends/embedded/backend.py",
        "dead = {*ended, *sessions.expired(conn, now), *sessions.of_other_boots(conn, self._boot, now)}",
        "dead = {*ended, *sessions.expired(conn, now)}",
        of("backends/embedded/sessions", "sessions_of_another_boot_are_expired", on="boot = 'another boot'"),
    ),
    Defect(
        "Embedded",
        "a session past its deadline is renewed",
        "backends/embedded/sessions.py",
        "    if not is_alive(conn, root, session_id, boot, now):\n        return False\n",
        "",
        of("backends/embedded/sessions", "expired_session_is_refused_before_anybody_sweeps_it", on="memory"),
    ),
    Defect(
        "Embedded",
        "a renewal counts from its answer",
        "backends/embedded/backend.py",
        "session.ttl_s / 8)\n            return sent_at\n",
        "session.ttl_s / 8)\n            return self._clock.now()\n",
        of("backends/embedded/sessions", "renewal_whose_write_took_long_counts_from_before_it", on="memory"),
    ),
    Defect(
        "Embedded",
        "a session that was closed here is used while its row is still there",
        "backends/embedded/backend.py",
        "            session_id not in self._ended and sessions.is_alive(",
        "            sessions.is_alive(",
        of(
            "backends/embedded/sessions",
            "session_closed_while_the_file_is_locked_is_refused_at_once_and_removed_later",
        ),
    ),
    Defect(
        "Embedded",
        "a write sees the keys of a session that is past its deadline",
        "backends/embedded/backend.py",
        "        for session_id in sessions.expired(conn, self._shared_now()):\n"
        "            sessions.end(conn, session_id)\n",
        "",
        of("backends/embedded/sessions", "write_takes_over_the_key_of_an_expired_session_without_a_sweep", on="memory"),
    ),
    Defect(
        "Embedded",
        "a put without a session unbinds the key",
        "backends/embedded/writes.py",
        "        created, owner = before or (token, None)\n",
        "        created, owner = (before or (token, None))[0], None\n",
        of("backends/embedded/keys", "put_without_session_keeps_the_owner_and_with_one_binds", on="memory"),
    ),
    Defect(
        "Embedded",
        "a watch goes on one write too late",
        "backends/embedded/watches.py",
        "        self._since, self._deadline = view.token, view.next_deadline\n",
        "        self._since, self._deadline = view.token + 1, view.next_deadline\n",
        of(
            "backends/embedded/watches",
            "changes_at_and_below_the_prefix_are_reported_and_no_others",
            on="memory",
        ),
    ),
    Defect(
        "Embedded",
        "deletions are forgotten without a note for watches that are behind",
        "backends/embedded/writes.py",
        '    conn.execute("UPDATE state SET forgotten = (SELECT max(token) FROM tombstones WHERE seq <= ?)", (cut,))\n',
        "",
        of(
            "backends/embedded/watches",
            "watch_that_fell_behind_forgotten_deletions_gets_everything_again",
            on="memory",
        ),
    ),
    Defect(
        "Embedded",
        "a look at what changed is not made again when it failed",
        "backends/embedded/watches.py",
        "            self._look_again = True  # until it worked\n",
        "            self._answered = asked\n",
        of("backends/embedded/watches", "watch_survives_a_time_without_database"),
    ),
    Defect(
        "Embedded",
        "a watch is closed while an event is being delivered",
        "backends/delivery.py",
        "            while self._deliverer not in {None, threading.get_ident()}:\n",
        "            while self._deliverer is not None and self.closed is False:\n",
        of("backends/embedded/watches", "close_waits_for_the_event_being_delivered", on="memory"),
    ),
)
