"""Defects of ``Group``, ``Barrier`` and ``DoubleBarrier``."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "Group",
        "a view is written without checking the previous one",
        "primitives/group/view_log.py",
        "Create(self.head_key, value) if head_entry is None else Put(self.head_key, value)",
        "Put(self.head_key, value)",
        id_of("primitives/group", "a_view_that_another_wrote_meanwhile_is_not_overwritten", on="memory"),
    ),
    Defect(
        "Group",
        "a view is written from a stale watch",
        "primitives/group/view_log.py",
        "                if name in self._stored:\n                    left.append(name)\n",
        "                pass\n",
        id_of("primitives/group", "a_view_is_never_older_than_the_one_before_it", on="memory"),
    ),
    Defect(
        "Group",
        "a member is taken from a watch that is behind the newest view",
        "primitives/group/view_log.py",
        "(head_entry is not None and entry.token <= head_entry.token)",
        "False",
        id_of("primitives/group", "a_view_does_not_bring_back_a_member_that_the_one_before_it_removed", on="memory"),
    ),
    Defect(
        "Group",
        "a view is written before the newest one is known",
        "primitives/group/follower.py",
        "                    await Pause(self._store.clock, has_view, None)\n",
        "",
        id_of("primitives/group", "a_writer_that_does_not_know_the_newest_view_yet_writes_none", on="memory"),
    ),
    Defect(
        "Group",
        "a member is not bound to its session",
        "primitives/group/membership.py",
        "[Put(self.key, body, session)]",
        "[Put(self.key, body)]",
        id_of("primitives/group", "a_last_member_whose_store_was_closed_first_is_gone", on="memory"),
    ),
    Defect(
        "Group",
        "a deputy does not notice that it has become the writer",
        "primitives/group/follower.py",
        '                if action == "check" and not await self._follower_queue.find_tickets_ahead(position):\n',
        "                if False:\n",
        id_of("trials/schedules/group", "a_deputy_writes_at_once_when_the_writer_has_left"),
    ),
    Defect(
        "Group",
        "a member whose join is in doubt stays after it left",
        "primitives/group/membership.py",
        "        self._key_session = session\n        try:\n",
        "        try:\n",
        id_of(
            "primitives/group", "a_member_that_leaves_while_its_join_is_in_doubt_leaves_no_member_behind", on="memory"
        ),
    ),
    Defect(
        "Barrier",
        "an arrival is written without checking the generation",
        "primitives/barrier/member.py",
        "ours, ops, opening_ops = [snapshot.phase_open_check], list[Op](), list[Op]()\n",
        "ours, ops, opening_ops = list[Check](), list[Op](), list[Op]()\n",
        id_of("primitives/barrier", "an_arrival_at_a_generation_that_ends_meanwhile_is_one_at_the_next", on="memory"),
    ),
    Defect(
        "Barrier",
        "a generation is ended twice",
        "primitives/barrier/member.py",
        "self._store.commit, [snapshot.phase_open_check], [write])",
        "self._store.commit, [], [write])",
        id_of("primitives/barrier", "two_that_end_a_generation_at_the_same_time_end_it_once", on="memory"),
    ),
    Defect(
        "Barrier",
        "nobody opens a barrier whose last arrival died",
        "primitives/barrier/member.py",
        "pause_s = random.uniform(*_BACKUP_PAUSE_S)",
        "pause_s = 60.0 + random.uniform(*_BACKUP_PAUSE_S)",
        id_of("primitives/barrier", "somebody_else_opens_it_when_the_last_to_arrive_dies_before", on="memory"),
    ),
    Defect(
        "Barrier",
        "each member that sees all arrivals ends the generation",
        "primitives/barrier/member.py",
        "        if not seen.has_ended and not seen.should_end_phase(self.member_id):\n",
        "        if False:\n",
        id_of(
            "primitives/barrier_generations",
            "of_those_who_see_that_all_have_come_the_last_one_ends_the_generation",
            on="memory",
        ),
    ),
    Defect(
        "Barrier",
        "a generation is opened twice",
        "primitives/barrier/member.py",
        "ours += [snapshot.opening_unchanged_check, *expected.checks]",
        "ours += [*expected.checks]",
        id_of(
            "primitives/barrier_generations",
            "one_that_opens_later_than_another_arrives_without_a_read_and_waits_for_whom_that_one_said",
            on="memory",
        ),
    ),
    Defect(
        "Barrier",
        "an arrival that is older than the opening counts",
        "primitives/barrier/phases.py",
        "return math.inf if self.opened is None or self.opening is None else self.opened.token",
        "return 0",
        id_of(
            "primitives/barrier_generations",
            "an_arrival_that_is_older_than_the_opening_stands_for_nobody",
            on="memory",
        ),
    ),
    Defect(
        "Barrier",
        "a member that comes again never reads the state",
        "primitives/barrier/member.py",
        "guess, self._guess = self._guess if self._is_absent else None, None",
        "guess = self._guess",
        id_of(
            "primitives/barrier_generations",
            "a_member_comes_again_without_a_read_and_finds_out_if_the_next_generation_has_ended_too",
            on="memory",
        ),
    ),
    Defect(
        "DoubleBarrier",
        "a change between the read and the wait is missed",
        "primitives/barrier/member.py",
        "                    await self._wait_for_another_phase(arrival.snapshot, waiter, deadline)\n",
        "                    newest, _ = await self._read_all()\n"
        "                    await self._wait_for_another_phase(newest, waiter, deadline)\n",
        id_of("primitives/double_barrier", "a_round_that_ends_between_look_and_wait_is_noticed", on="memory"),
    ),
)
