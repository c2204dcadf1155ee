"""Defects of the ZooKeeper backend."""

from __future__ import annotations

from mutants.defect import Defect, of

DEFECTS = (
    Defect(
        "ZooKeeper writes",
        "a write that later ones have overtaken counts as applied",
        "backends/zookeeper/connection.py",
        "            if found is not None and call.number == reached:\n",
        "            if found is not None and call.number <= reached:\n",
        of("backends/zookeeper/connection", "a_lower_number_sends_it_again_and_a_higher_one_leaves_it_unknown"),
    ),
    Defect(
        "ZooKeeper writes",
        "a write that later ones have overtaken counts as never sent",
        "backends/zookeeper/connection.py",
        "            elif found is None or call.number < reached:\n"
        "                call.set_exception(Cut(sent=True, over=False))\n",
        "            elif found is None or call.number < reached:\n"
        "                call.set_exception(Cut(sent=False, over=False))\n",
        of(
            "backends/zookeeper/connection",
            "a_lower_number_sends_it_again_and_a_higher_one_leaves_it_unknown",
            "without_the_evidence_znode_nothing_is_known",
        ),
    ),
    Defect(
        "ZooKeeper writes",
        "later writes are sent while an earlier one is not settled",
        "backends/zookeeper/connection.py",
        "            waiting = self._settling if self._unsettled else self._outbox\n",
        "            waiting = self._settling if self._settling else self._outbox\n",
        of("backends/zookeeper/connection", "only_what_settles_is_sent_until_everything_is_settled"),
    ),
    Defect(
        "ZooKeeper writes",
        "a write that was cut off when its session ended is told as not applied",
        "backends/zookeeper/errors.py",
        "    if write and cut.sent:\n",
        "    if write and cut.sent and not cut.over:\n",
        of(
            "backends/zookeeper/errors",
            "a_write_that_was_sent_is_unknown_whatever_ended_its_connection",
            on="None-True",
        ),
    ),
    Defect(
        "ZooKeeper writes",
        "what waits for a connection is sent although its session was closed",
        "backends/zookeeper/connection.py",
        "                self._discards = True\n",
        "",
        of("backends/zookeeper/silence", "a_write_that_was_cut_off_is_not_sent_again_once_its_session_was_closed"),
    ),
    Defect(
        "ZooKeeper checks",
        "a conflict is told by what is remembered of a key",
        "backends/zookeeper/writing/compiler.py",
        "        if not self.known.fresh:\n            raise NeedStates\n        raise Conflict(message, [failed])\n",
        "        raise Conflict(message, [failed])\n",
        of("backends/zookeeper/versions", "what_is_remembered_of_a_key_is_no_verdict"),
    ),
    Defect(
        "ZooKeeper checks",
        "a conflict names another check than the one that failed",
        "backends/zookeeper/writing/compiler.py",
        '            self._refuse(f"{check.key!r} does not exist", check)\n        self._guard(check.key, seen)\n',
        '            self._refuse(f"{check.key!r} does not exist", Absent(check.key))\n'
        "        self._guard(check.key, seen)\n",
        of("backends/zookeeper/versions", "exists_is_not_fooled_by_an_implied_parent"),
    ),
    Defect(
        "ZooKeeper checks",
        "a deletion does not change the guard of its keys",
        "backends/zookeeper/writing/compiler.py",
        "            pinned = 0  # a znode of version 0 is a key, whichever: no guard is needed\n"
        "        self._bump(key)\n",
        "            pinned = 0\n",
        of(
            "backends/zookeeper/versions",
            "at_refuses_a_key_recreated_by_the_same_store_with_the_same_data_version",
            on="0",
        ),
    ),
    Defect(
        "ZooKeeper checks",
        "a check of a session's key does not check the session",
        "backends/zookeeper/writing/compiler.py",
        "        if owner is not None and owner != self.session_id:\n            self.markers[owner] = None\n",
        "",
        of("backends/zookeeper/versions", "at_refuses_a_session_bound_key_recreated_by_the_next_session"),
    ),
    Defect(
        "ZooKeeper reads",
        "many keys are read without a barrier",
        "backends/zookeeper/reads.py",
        "        yield connection.confirm(deadline)\n        return context\n",
        "        if not deadline:\n            yield connection.confirm(deadline)\n        return context\n",
        of("backends/zookeeper/barriers", "a_linearizable_read_begins_with_a_barrier", on="get_many"),
    ),
    Defect(
        "ZooKeeper reads",
        "a read is believed behind a barrier that another server answered",
        "backends/zookeeper/calls.py",
        "return barrier is not None and barrier.epoch == self.epoch and barrier.done()",
        "return barrier is not None and barrier.done()",
        of("backends/zookeeper/barriers", "a_read_is_believed_only_behind_a_barrier_of_its_own_connection"),
    ),
    Defect(
        "ZooKeeper reads",
        "numbers of sequential keys begin anew when all below their parent is deleted",
        "backends/zookeeper/writing/sequences.py",
        "    if above:\n        parts.insert(0, wire.check(layout.keep(above)))\n",
        "",
        of(
            "backends/zookeeper/keeping",
            "a_parent_that_was_there_before_keeps_its_numbers_when_all_is_deleted",
        ),
    ),
    Defect(
        "ZooKeeper sessions",
        "a session without its marker counts as renewed",
        "backends/zookeeper/sessions.py",
        "        if error in {NO_NODE, SESSION_EXPIRED}:\n",
        "        if error == NO_NODE:\n            return call.sent_at\n        if error == SESSION_EXPIRED:\n",
        of("backends/zookeeper/sessions", "a_session_whose_marker_is_gone_is_lost"),
    ),
    Defect(
        "ZooKeeper sessions",
        "a renewal counts from its answer",
        "backends/zookeeper/sessions.py",
        "        return call.sent_at\n",
        "        return self._settings.clock.now()\n",
        of("backends/zookeeper/sessions", "a_renewal_counts_from_its_very_send"),
    ),
    Defect(
        "ZooKeeper sessions",
        "each renewal counts by itself, although a ping may not have reached the leader",
        "backends/zookeeper/sessions.py",
        "        return self.ttl_s / 4\n",
        "        return 0.0\n",
        of("backends/zookeeper/sessions", "ttl_is_what_the_server_granted"),
    ),
    Defect(
        "ZooKeeper sessions",
        "a session goes on with another ZooKeeper session when its own has expired",
        "backends/zookeeper/sessions.py",
        "        if gone:\n            self._on_gone()\n        return True\n",
        "        if gone:\n            self._on_gone()\n        return False\n",
        of("backends/zookeeper/sessions", "an_expired_session_is_gone_for_ever"),
    ),
    Defect(
        "ZooKeeper watches",
        "what changes while a watch loads is lost",
        "backends/zookeeper/watching/watches.py",
        "                self._dirty |= watch.dirty\n",
        "",
        of("backends/zookeeper/loading", "what_changes_between_the_look_and_the_first_state_is_told"),
    ),
    Defect(
        "ZooKeeper watches",
        "watches do not load again on a new connection",
        "backends/zookeeper/watching/watches.py",
        "        for watch in self._all():\n            self._load(watch)\n        self._leaves.on_up()\n",
        "        self._leaves.on_up()\n",
        of("backends/zookeeper/faults", "watches_survive_cuts_and_miss_nothing"),
    ),
    Defect(
        "ZooKeeper watches",
        "a state without a leaf is believed without a barrier",
        "backends/zookeeper/watching/leaves.py",
        "        elif call.linearizable:\n",
        "        elif number:\n",
        of("backends/zookeeper/leaves", "a_state_without_the_key_is_believed_only_behind_a_barrier"),
    ),
)
