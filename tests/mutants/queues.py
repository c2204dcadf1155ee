"""Defects of ``Queue`` and ``WorkQueue``."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "Queue",
        "an item is acknowledged without the fence of its claim",
        "primitives/queue/claims.py",
        "            await ask(self._store.commit, [self.fence, *checks], ops)\n",
        "            await ask(self._store.commit, [*checks], ops)\n",
        id_of(
            "primitives/queue", "an_acknowledgement_after_an_outsider_took_the_claim_away_changes_nothing", on="memory"
        ),
    ),
    Defect(
        "Queue",
        "an item is claimed without checking that it is still there",
        "primitives/queue/item_claimer.py",
        "            checks.update(dict.fromkeys((*attempt.free, *attempt.checks)))\n",
        "            checks.update(dict.fromkeys(attempt.checks))\n",
        id_of("primitives/queue", "an_item_that_is_done_between_look_and_claim_is_not_taken_again", on="memory"),
    ),
    Defect(
        "Queue",
        "an item with a claim becomes a dead letter",
        "primitives/queue/item_claimer.py",
        "            all_checks = [*self._keys.build_free_checks(item), *checks]\n",
        "            all_checks = [item.check, *checks]\n",
        id_of(
            "primitives/queue",
            "an_item_on_its_last_attempt_is_not_buried_by_one_that_did_not_see_the_claim",
            on="memory",
        ),
    ),
    Defect(
        "Queue",
        "a claim that may land late is forgotten",
        "primitives/queue/unconfirmed_claims.py",
        "                await ask(self._store.commit, [At(found)], [Put(found.key, found.value)])\n",
        "",
        id_of("primitives/queue", "a_claim_that_lands_after_its_take_gave_up_leaves_the_item_to_others"),
    ),
    Defect(
        "Queue",
        "an acknowledgement forgets that its answer was lost",
        "primitives/queue/claims.py",
        "            self._is_in_doubt = True\n",
        "            self._is_in_doubt = False\n",
        id_of(
            "primitives/queue",
            "an_acknowledgement_that_was_tried_again_behind_its_lost_answer_is_done_once",
            on="memory",
        ),
    ),
    Defect(
        "Queue",
        "a claim counts as ours while its release is on the way",
        "primitives/queue/claims.py",
        "        self._is_ending = True  # from the commit on, another client may take the item\n",
        "",
        id_of("trials/schedules/queue", "a_claim_that_is_given_back_says_so_before_anybody_else_can_take_the_item"),
    ),
    Defect(
        "WorkQueue",
        "an item is ended without checking that it is still there",
        "primitives/queue/claims.py",
        "self._store.fence(self._token, self.item.check, holder.fence)\n",
        "self._store.fence(self._token, holder.fence)\n",
        id_of(
            "primitives/work_queue",
            "who_has_an_item_that_was_removed_cannot_end_it_and_is_told",
            on="memory-ack-removed",
        ),
    ),
    Defect(
        "WorkQueue",
        "an item is ended without checking its claim",
        "primitives/queue/claims.py",
        "self._store.fence(0, Exists(holder.key), self._session.fence)\n",
        "self._session.fence\n",
        id_of(
            "primitives/work_queue",
            "an_end_without_a_claim_is_refused_though_nobody_else_has_the_item",
            on="memory-ack",
        ),
    ),
    Defect(
        "WorkQueue",
        "a sort_key leaves the index while an item comes into it",
        "primitives/queue/partition_reader.py",
        "            await ask(store.commit, [At(entry) for entry in left], [Delete(entry.key) for entry in left])\n",
        "            await ask(store.commit, [], [Delete(entry.key) for entry in left])\n",
        id_of(
            "primitives/work_queue_races",
            "a_sort_key_that_is_seen_empty_stays_when_an_item_comes_meanwhile",
            on="memory-put_there",
        ),
    ),
    Defect(
        "WorkQueue",
        "a step of a caller's transaction forgets that the answer was lost",
        "primitives/queue/claims.py",
        "        self._is_in_doubt = self._is_in_doubt or isinstance(error, OutcomeUnknown)\n",
        "",
        id_of("primitives/work_queue_races", "a_part_with_a_lost_answer_says_whether_it_landed", on="memory-True"),
    ),
    Defect(
        "WorkQueue",
        "the end of a claim wakes no waiter",
        "primitives/queue/waiting_consumers.py",
        "        (self._existing_holders.add if exists else self._existing_holders.discard)(holder)\n",
        "        self._existing_holders.add(holder)\n",
        id_of("primitives/work_queue_staying", "the_end_of_a_holder_frees_all_items_that_it_has"),
    ),
    Defect(
        "WorkQueue",
        "an item is taken while the holder of its claim exists",
        "primitives/queue/items.py",
        "        return [item.check, Absent(self.holder_key(item.partition, holder))] if holder else [item.check]\n",
        "        return [item.check]\n",
        id_of("primitives/work_queue_races", "an_item_whose_holder_was_not_seen_is_not_taken", on="memory"),
    ),
    Defect(
        "WorkQueue",
        "an item is taken for a holder that is gone",
        "primitives/queue/item_claimer.py",
        "{Exists(holder.key): None for holder in holders.values() if holder.exists}\n",
        "{}\n",
        id_of("primitives/work_queue_races", "a_taker_whose_holder_is_gone_takes_with_another", on="memory"),
    ),
)
