"""Defects of the job cluster: the stored assignment, nodes, runs under locks, cron progress."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "Job manager",
        "an assignment is written without the leader's fence",
        "jobs/manager/assignment_store.py",
        "        checks: list[Check] = [fence, Absent(keys.GUARD_ASSIGNMENT)",
        "        checks: list[Check] = [Absent(keys.GUARD_ASSIGNMENT)",
        id_of("jobs/assignment_store", "a_leader_without_leadership_writes_nothing"),
    ),
    Defect(
        "Job manager",
        "a share is written without checking the one that was read",
        "jobs/manager/assignment_store.py",
        "            checks += stored.unchanged_checks(keys.share_key(worker, job))\n",
        "            checks += []\n",
        id_of("jobs/assignment_store", "a_share_that_somebody_wrote_under_the_leader_is_not_overwritten"),
    ),
    Defect(
        "Job manager",
        "a cleanup deletes the pool of a node that registers",
        "jobs/manager/leadership.py",
        "                self._store.commit([self._fence, unchanged, At(manifest)], ops)\n",
        "                self._store.commit([self._fence, At(manifest)], ops)\n",
        id_of("jobs/cluster", "a_worker_that_registers_during_the_cleaning_does_not_lose_its_pool"),
    ),
    Defect(
        "Chunked sets",
        "a writer that slept overwrites a newer state",
        "jobs/stored/chunked_set.py",
        "[*checks, before.unchanged_check(key)], [Put(key, update.after.encode_manifest()), *extra]\n",
        "[*checks], [Put(key, update.after.encode_manifest()), *extra]\n",
        id_of("jobs/packed_store", "a_writer_that_slept_between_read_and_flip_tries_again_on_the_new_state"),
    ),
    Defect(
        "Chunked sets",
        "old chunks are deleted before the new manifest is written",
        "jobs/stored/chunked_set.py",
        "        extra = list(ops_if_created) if before.manifest is None else []\n",
        "        extra = list(ops_if_created) if before.manifest is None else []\n"
        "        delete_chunks(store, [(key, update)], checks)\n",
        id_of("jobs/packed_store", "after_each_transaction_of_a_rewrite_the_set_is_the_old_or_the_new_one"),
    ),
    Defect(
        "Job node",
        "a registration does not check that its id is still its own",
        "jobs/node/registration.py",
        "        return [self._session.fence, At(self._alive)]\n",
        "        return [self._session.fence]\n",
        id_of("jobs/cluster", "a_registration_whose_place_another_start_has_taken_writes_nothing_more"),
    ),
    Defect(
        "Job worker",
        "a lock is released while its run goes on",
        "jobs/worker/runs.py",
        "tuple(sorted(locked - wanted - busy))",
        "tuple(sorted(locked - wanted))",
        id_of("jobs/reconcile", "a_lock_is_kept_until_the_run_that_uses_it_has_ended"),
    ),
    Defect(
        "Job worker",
        "a lost lock is reacquired under the run that lost it",
        "jobs/worker/runs.py",
        "tuple(sorted(wanted - locked - busy))",
        "tuple(sorted(wanted - locked))",
        id_of("jobs/reconcile", "a_run_whose_lock_was_lost_is_stopped_and_its_item_is_locked_again_after_its_end"),
    ),
    Defect(
        "Job worker",
        "a run uses the fence of a lock that it has lost",
        "jobs/worker/item_locks.py",
        "        if hold is None or not hold.is_held:\n",
        "        if hold is None:\n",
        id_of("jobs/run_locks", "a_lock_that_was_lost_and_taken_anew_is_no_lock_of_the_old_run"),
    ),
    Defect(
        "Job worker",
        "a close releases the locks of a run that has not stopped",
        "jobs/worker/worker.py",
        "            self.locks.close(release=not stuck_jobs and not late)\n",
        "            self.locks.close(release=not late)\n",
        id_of("jobs/cluster", "a_run_that_does_not_stop_is_reported_and_its_lock_left_to_run_out"),
    ),
    Defect(
        "Cron",
        "a run starts before its fire time is written",
        "jobs/cron_progress.py",
        "        self._write(begun)\n        self._fired.update(begun)\n",
        "        self._fired.update(begun)\n",
        id_of("jobs/cron_progress", "a_run_whose_node_died_is_begun_again_by_the_next_holder", on="memory"),
    ),
    Defect(
        "Cron",
        "a start of unknown outcome counts as written",
        "jobs/cron_progress.py",
        "                if attempt == 2 or isinstance(error, OutcomeUnknown) or self._is_owner_gone(own.record):\n",
        "                if isinstance(error, OutcomeUnknown):\n                    return\n"
        "                if attempt == 2 or self._is_owner_gone(own.record):\n",
        id_of("jobs/cron_progress", "a_start_that_may_land_yet_does_not_start"),
    ),
    Defect(
        "Cron",
        "progress is written without checking the owner of the locks",
        "jobs/cron_progress.py",
        '        return [Exists(f"{keys.OWNERS}/{record.owner}"), *self._also]\n',
        "        return [*self._also]\n",
        id_of("jobs/cron_progress", "nothing_starts_on_a_node_whose_owner_is_gone_though_nobody_has_its_items_yet"),
    ),
)
