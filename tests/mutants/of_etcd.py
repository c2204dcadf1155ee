"""Defects of the etcd backend. Its folder of tests runs on each version always; one version is enough here."""

from __future__ import annotations

from mutants.defect import Defect, of

_LOST = "write_whose_answer_was_lost_is_told_as_it_was_and_applied_once"

DEFECTS = (
    Defect(
        "etcd writes",
        "a server that could not be reached for a moment counts as never asked",
        "backends/etcd/errors.py",
        "    if code(error) is _Code.UNAVAILABLE and any(words in said for words in _NEVER_SENT):\n",
        "    if code(error) is _Code.UNAVAILABLE:\n",
        of(
            "backends/etcd/errors",
            "only_what_surely_was_not_applied_counts_as_that",
            on="StatusCode.UNAVAILABLE-Socket closed-Fate.UNKNOWN",
        ),
    ),
    Defect(
        "etcd writes",
        "a write whose time was over counts as refused",
        "backends/etcd/errors.py",
        "    _Code.UNAUTHENTICATED,\n}\n",
        "    _Code.UNAUTHENTICATED,\n    _Code.DEADLINE_EXCEEDED,\n}\n",
        of(
            "backends/etcd/errors",
            "only_what_surely_was_not_applied_counts_as_that",
            on="StatusCode.DEADLINE_EXCEEDED-Deadline Exceeded-Fate.UNKNOWN",
        ),
    ),
    Defect(
        "etcd writes",
        "a call that is refused for an old token only counts as refused",
        "backends/etcd/errors.py",
        "        return Fate.STALE_TOKEN\n",
        "        return Fate.REFUSED\n",
        of(
            "backends/etcd/errors",
            "only_what_surely_was_not_applied_counts_as_that",
            on="StatusCode.UNAUTHENTICATED-etcdserver: invalid auth token-Fate.STALE_TOKEN",
        ),
    ),
    Defect(
        "etcd writes",
        "a write that is found to have landed is sent again",
        "backends/etcd/writing/settling.py",
        "        self._slots.give_back(slot)\n        if not revision:\n",
        "        self._slots.give_back(slot)\n        if revision is not None:\n",
        tuple(
            f"backends/etcd/test_unknown_writes.py::test_{_LOST}[etcd35-{kind}]" for kind in ("put", "create", "delete")
        ),
    ),
    Defect(
        "etcd writes",
        "who settles a write only looks, and does not keep it from landing later",
        "backends/etcd/writing/slots.py",
        "[EtcdRequest.put(self.key, _SETTLED, self.lease)], [self.read])",
        "[self.read], [self.read])",
        of(
            "backends/etcd/unknown_writes",
            "write_that_could_not_be_settled_is_unknown_and_the_next_read_of_this_store_is_final",
            on="etcd35",
        ),
    ),
    Defect(
        "etcd writes",
        "a read does not wait until an unknown write is settled",
        "backends/etcd/backend.py",
        "        if self._settling.unsettled and not stale_ok:\n",
        "        if self._settling.unsettled and stale_ok:\n",
        of(
            "backends/etcd/waiting",
            "write_that_an_interrupt_cut_short_is_settled_before_the_next_read",
            on="etcd35",
        ),
    ),
    Defect(
        "etcd writes",
        "a write that an interrupt cut short is forgotten",
        "backends/etcd/writing/writes.py",
        "            self.settling.leave_slot(slot)\n            raise\n        rpc.add_done_callback(",
        "            raise\n        rpc.add_done_callback(",
        of(
            "backends/etcd/waiting",
            "write_that_an_interrupt_cut_short_is_settled_before_the_next_read",
            on="etcd35",
        ),
    ),
    Defect(
        "etcd writes",
        "guards are left behind when a store is closed",
        "backends/etcd/writing/slots.py",
        "        lease, self.lease = self.lease, 0\n        if lease:\n",
        "        lease, self.lease = self.lease, 0\n        if not lease:\n",
        of("backends/etcd/unknown_writes", "closed_stores_leave_no_guards_behind", on="etcd35"),
    ),
    Defect(
        "etcd reads",
        "checks that failed at different moments are named together",
        "backends/etcd/ranges.py",
        "            each.revision = answer.header.revision\n",
        "            each.revision = 0\n",
        of("backends/etcd/ranges", "checks_that_never_failed_together_are_not_named_together", on="etcd35"),
    ),
    Defect(
        "etcd reads",
        "one key without rights fails all that are read with it",
        "backends/etcd/merging.py",
        "            chain(self._read(wish.key, wish.deadline), wish)\n",
        "            reject(wish, error)\n",
        of("backends/etcd/merging", "refused_together_each_is_asked_for_alone_with_its_own_deadline"),
    ),
    Defect(
        "etcd watches",
        "a watch goes on one revision late after its first state",
        "backends/etcd/watching/watches.py",
        "max(part.resume_at, page.revision + 1), False\n",
        "max(part.resume_at, page.revision + 2), False\n",
        of("backends/etcd/following", "the_first_write_after_the_first_state_is_told"),
    ),
    Defect(
        "etcd watches",
        "a watch goes on one revision late after a disconnect",
        "backends/etcd/watching/watches.py",
        "max(part.resume_at, response.events[-1].kv.mod_revision + 1)  #",
        "max(part.resume_at, response.events[-1].kv.mod_revision + 2)  #",
        of("backends/etcd/following", "the_first_write_after_a_disconnect_is_told"),
    ),
    Defect(
        "etcd watches",
        "a watch that fell behind compaction is not begun anew",
        "backends/etcd/watching/watches.py",
        'reading again", response.compact_revision)\n            self._restart(watch)\n',
        'reading again", response.compact_revision)\n',
        of(
            "backends/etcd/faults",
            "compaction_while_a_watch_is_cut_off_gives_a_new_snapshot_with_nothing_lost",
            on="3.5",
        ),
    ),
    Defect(
        "etcd watches",
        "what comes of a leaf before its first state is not held back",
        "backends/etcd/watching/parts.py",
        "self.held: list[Any] | None = [] if leaf else None\n",
        "self.held: list[Any] | None = None\n",
        of(
            "backends/etcd/leaves",
            "what_is_written_between_the_read_and_its_answer_is_held_until_that_was_told",
            on="etcd35",
        ),
    ),
    Defect(
        "etcd sessions",
        "a session counts from the answer to its lease",
        "backends/etcd/sessions.py",
        '        session = EtcdSession(self, f"{lease:x}", granted_s, sent_at)\n',
        '        session = EtcdSession(self, f"{lease:x}", granted_s, self._link.clock.now())\n',
        of("backends/etcd/following", "opening_and_renewals_count_from_before_they_were_sent"),
    ),
    Defect(
        "etcd sessions",
        "a renewal counts from its answer",
        "backends/etcd/sessions.py",
        "                return sent_at\n",
        "                return self._link.clock.now()\n",
        of("backends/etcd/following", "opening_and_renewals_count_from_before_they_were_sent"),
    ),
    Defect(
        "etcd sessions",
        "a lease that the server does not know any more counts as renewed",
        "backends/etcd/sessions.py",
        "                if answer.TTL <= 0:\n",
        "                if answer.TTL < 0:\n",
        of(
            "backends/etcd/faults",
            "lease_revoked_from_outside_is_told_and_nothing_of_the_session_lands",
            on="3.5",
        ),
    ),
    Defect(
        "etcd sessions",
        "a session that was closed here, and could not be on the server, goes on",
        "backends/etcd/sessions.py",
        "            self.ended.add(session.id)\n",
        "",
        of("backends/etcd/bounds", "a_session_that_could_not_be_ended_is_refused_here_and_ended_later"),
    ),
    Defect(
        "etcd sessions",
        "a lease whose answer was lost is taken for another's",
        "backends/etcd/writing/slots.py",
        "if error.__cause__ is None or not rpc_errors.says(error.__cause__, _OURS_ALREADY):\n",
        "if error.__cause__ is None or rpc_errors.says(error.__cause__, _OURS_ALREADY):\n",
        of("backends/etcd/edges", "a_session_opens_although_the_answer_to_its_lease_was_lost", on="etcd35"),
    ),
    Defect(
        "Watches",
        "a name that is no key ends the events of its response",
        "backends/etcd/watching/watches.py",
        "                if key is None:\n                    continue\n",
        "                if key is None:\n                    break\n",
        of(
            "backends/etcd/strangers",
            "an_open_watch_tells_the_other_changes_of_the_same_response",
            on="etcd35",
        ),
    ),
)
