"""All planted defects, in the order of the layers of the package."""

from __future__ import annotations

from mutants import (
    backends,
    counters,
    executor,
    fair_locks,
    groups,
    jobs,
    persistent_locks,
    plans,
    queues,
    store,
    worker_groups,
    workflows,
)

DEFECTS = (
    *store.DEFECTS,
    *backends.DEFECTS,
    *fair_locks.DEFECTS,
    *persistent_locks.DEFECTS,
    *queues.DEFECTS,
    *counters.DEFECTS,
    *groups.DEFECTS,
    *jobs.DEFECTS,
    *executor.DEFECTS,
    *plans.DEFECTS,
    *worker_groups.DEFECTS,
    *workflows.DEFECTS,
)
