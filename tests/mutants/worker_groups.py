"""Defects of worker groups: epochs, detector, and arrivals that share a transaction."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "Worker groups",
        "the fence of a worker outlives its epoch",
        "worker_group/membership.py",
        "        more = () if epoch is None else (At(epoch),)\n",
        "        more = ()\n",
        id_of("worker_group/faults", "a_write_of_an_epoch_that_is_over_is_refused", on="memory"),
    ),
    Defect(
        "Worker groups",
        "a worker counts as lost before its lease was seen",
        "worker_group/observation.py",
        "delay_s(rank) + (0.0 if by_version[name].had_lease else _NEVER_SEEN_S)",
        "delay_s(rank)",
        id_of("worker_group/observing", "a_worker_whose_lease_was_never_seen_is_told_lost_only_when_that_lasts"),
    ),
    Defect(
        "Worker groups",
        "a failure of an earlier epoch fails the group",
        "worker_group/worker_core.py",
        "            current = self.current_epoch()\n"
        "            await self._writer.fail(current.fence, current.epoch, why)\n",
        "            await self.fail(why)\n",
        id_of(
            "worker_group/faults",
            "what_a_function_raises_after_another_worker_was_lost_is_no_failure_of_the_group",
            on="memory",
        ),
    ),
    Defect(
        "Worker groups",
        "two arrivals that write one key share a transaction",
        "primitives/barrier/local_members.py",
        "        if taken and (keys & mine or checks",
        "        if taken and (checks",
        id_of("primitives/barrier_local_members", "two_that_write_one_key_do_not_go_together_and_reads_go_first"),
    ),
)
