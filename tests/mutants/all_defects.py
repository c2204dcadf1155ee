"""Every planted defect: of each invariant of each primitive, and of the store, the backends and the jobs."""

from __future__ import annotations

from mutants import (
    of_backlogs,
    of_embedded,
    of_etcd,
    of_executor,
    of_flow_workers,
    of_jobs,
    of_leaders,
    of_locks,
    of_loops,
    of_meetings,
    of_numbers,
    of_operations,
    of_persistent_locks,
    of_plans,
    of_queues,
    of_shared_backends,
    of_store,
    of_tasks,
    of_workers,
    of_zookeeper,
)

DEFECTS = (
    *of_store.DEFECTS,
    *of_shared_backends.DEFECTS,
    *of_embedded.DEFECTS,
    *of_etcd.DEFECTS,
    *of_zookeeper.DEFECTS,
    *of_locks.DEFECTS,
    *of_leaders.DEFECTS,
    *of_persistent_locks.DEFECTS,
    *of_numbers.DEFECTS,
    *of_meetings.DEFECTS,
    *of_queues.DEFECTS,
    *of_backlogs.DEFECTS,
    *of_jobs.DEFECTS,
    *of_operations.DEFECTS,
    *of_tasks.DEFECTS,
    *of_executor.DEFECTS,
    *of_workers.DEFECTS,
    *of_plans.DEFECTS,
    *of_flow_workers.DEFECTS,
    *of_loops.DEFECTS,
)
