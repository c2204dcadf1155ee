"""Asking for runs by hand, from any process: now and once, by the nodes that hold the items' locks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping

from latchwork.errors import Closed, LatchworkError, WaitTimeout
from latchwork.jobs.cron.cells import newest_by_item
from latchwork.jobs.cron.progress import cells_of
from latchwork.jobs.stored.keys import check_id, check_item
from latchwork.jobs.stored.requests import ASKED, MOST_ITEMS, RunEnd, RunRequest, decode_end
from latchwork.store import Store
from latchwork.types import Entry

#: Items that have left the pool meanwhile are found so often.
_REQUEST_LOOK_S = 2.0


def ask_to_run(store: Store, job: str, items: Iterable[str] | None, *, by: str, within_s: float) -> RunRequest:
    """Ask for a run of each of these items, or of all: now, and once in the cluster.

    Raises:
        ValueError: the job's id or an item cannot be used, or there are more than 100 of them.
    """
    listed = None if items is None else tuple(sorted({check_item(item) for item in items}))
    if listed is not None and not 1 <= len(listed) <= MOST_ITEMS:
        raise ValueError(f"{len(listed)} items were named; name 1 to {MOST_ITEMS}, or none for all")
    now = time.time()
    request = RunRequest(uuid.uuid4().hex, check_id("job", job), listed, now, now + within_s, by)
    store.create(request.key, request.encode())
    return request


def wait_for_runs(
    store: Store, request: RunRequest, wanted: Callable[[], frozenset[str]], timeout_s: float
) -> list[RunEnd]:
    """Wait until each item has had its run, and forget the request.

    Args:
        store: the cluster's store.
        request: what was asked for.
        wanted: gives the items of it that there still are.
        timeout_s: seconds to wait.
    Returns:
        How the runs ended, sorted by node and items.
    Raises:
        WaitTimeout: not all have ended; what has not begun is not begun any more.
    """
    clock = store.clock
    until = clock.now() + timeout_s
    done: frozenset[str] = frozenset()

    def all_ended(state: Mapping[str, Entry]) -> bool:
        nonlocal done
        done = _ended_items(request, state)
        return left <= done

    try:
        with store.mirror(f"{ASKED}/{request.id}") as mirror:
            while True:
                left = wanted()
                try:
                    mirror.wait_until(all_ended, max(0.0, min(_REQUEST_LOOK_S, until - clock.now())))
                except WaitTimeout:
                    if clock.now() < until:
                        continue
                    raise WaitTimeout(
                        f"after {timeout_s:g} s {len(left & done)} of {len(left)} items of job {request.job} have had "
                        "their run; what has not begun is called off; wait longer, or look at `latchwork why`"
                    ) from None
                break
            found = [decode_end(entry.value) for entry in store.list(request.ended)]
    finally:
        forget(store, request)
    return sorted((each for each in found if each is not None), key=lambda each: (each.node, each.named))


def forget(store: Store, request: RunRequest) -> None:
    """Call off what has not begun, and forget what has; left to the cluster when the store is out of reach."""
    try:
        store.delete(request.key)
        store.delete_tree(f"{ASKED}/{request.id}")
    except Closed:
        raise
    except LatchworkError:
        return  # its time ends by itself


def _ended_items(request: RunRequest, state: Mapping[str, Entry]) -> frozenset[str]:
    below = f"{request.progress}/{request.job}/"
    cells = cells_of((entry for key, entry in state.items() if key.startswith(below)), request.job, request.progress)
    newest = newest_by_item(cell for cell, _ in cells)
    return frozenset(
        item for item, (_, fired) in newest.items() if fired.running is None and fired.through >= request.at_s
    )
