"""Changes how a cluster behaves, and asks it for runs, from any process and without joining it.

Every change is stored and takes effect at once. It is one transaction that checks what it read, so two people at a time
lose nothing of each other's changes.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from latchwork._base.decoding import MOST_DURATION_S, encode
from latchwork.checks import check_store, is_number
from latchwork.errors import Closed, Conflict, LatchworkError, WaitTimeout
from latchwork.jobs import settings as stored
from latchwork.jobs.cron import cells_of, newest_by_item
from latchwork.jobs.options import InvalidSetting
from latchwork.jobs.settings import Settings, read_settings
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.keys import check_id, check_item, cluster_store
from latchwork.jobs.stored.nodes import Member, NodeMark, decode_mark, mark_key, reserved_key
from latchwork.jobs.stored.packed import commit_all, read
from latchwork.jobs.stored.requests import (
    AUDIT,
    MANUAL,
    MAX_REQUEST_ITEMS,
    AuditRecord,
    RunRequest,
    RunResult,
    decode_result,
)
from latchwork.primitives import LockState, force_release, lock_states
from latchwork.store import Store, Tx
from latchwork.types import Absent, At, Check, Create, Delete, Entry, Op
from latchwork.words import utc_text

#: Items that have left the pool meanwhile are found so often.
_REQUEST_POLL_S = 2.0

#: How often a node that is being drained is asked for the locks it still holds.
_POLL_S = 0.2


def request_run(store: Store, job: str, items: Iterable[str] | None, *, by: str, within_s: float) -> RunRequest:
    """Ask for a run of each of these items, or of all: now, and once in the cluster.

    Raises:
        ValueError: the job's id or an item cannot be used, or there are more than 100 of them.
    """
    listed = None if items is None else tuple(sorted({check_item(item) for item in items}))
    if listed is not None and not 1 <= len(listed) <= MAX_REQUEST_ITEMS:
        raise ValueError(f"{len(listed)} items were named; name 1 to {MAX_REQUEST_ITEMS}, or none for all")
    now = time.time()
    request = RunRequest(uuid.uuid4().hex, check_id("job", job), listed, now, now + within_s, by)
    store.create(request.key, request.encode())
    return request


def wait_for_runs(
    store: Store, request: RunRequest, wanted: Callable[[], frozenset[str]], timeout_s: float
) -> list[RunResult]:
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
        with store.mirror(f"{MANUAL}/{request.id}") as mirror:
            while True:
                left = wanted()
                try:
                    mirror.wait_until(all_ended, max(0.0, min(_REQUEST_POLL_S, until - clock.now())))
                except WaitTimeout:
                    if clock.now() < until:
                        continue
                    raise WaitTimeout(
                        f"after {timeout_s:g} s {len(left & done)} of {len(left)} items of job {request.job} have had "
                        "their run; what has not begun is called off; wait longer, or look at `latchwork why`"
                    ) from None
                break
            found = [decode_result(entry.value) for entry in store.list(request.ended)]
    finally:
        delete_request(store, request)
    return sorted((each for each in found if each is not None), key=lambda each: (each.node, each.named))


def delete_request(store: Store, request: RunRequest) -> None:
    """Call off what has not begun, and forget what has; left to the cluster when the store is out of reach."""
    try:
        store.delete(request.key)
        store.delete_tree(f"{MANUAL}/{request.id}")
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


class UnknownNode(LatchworkError, LookupError):
    """No node of this id lives in the cluster; the message lists those that do."""


class LockNotHeld(LatchworkError, LookupError):
    """Nobody holds the lock."""


def current_user() -> str:
    """The user and host that change things, for people who look later."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


class Control:
    """The settings of one cluster. Construction does no I/O. Safe to share between threads.

    Args:
        store: the store, opened with the cluster's root.
        namespace: the cluster's namespace below it, as given to its job managers.
        by: who changes things, stored with each change; by default user and host.
    """

    def __init__(self, store: Store, *, namespace: str | None = None, by: str | None = None) -> None:
        check_store(store, "Control")
        self._store = cluster_store(store, namespace)
        self._by = by

    def settings(self) -> Settings:
        """Read all settings; what cannot be used is logged and counts as not set."""
        return read_settings(self._store)

    def disable_all(self) -> None:
        """Run no job anywhere, whatever its switch says: live runs are told to stop within about a second."""
        self.change_cluster(all_disabled=True)

    def enable_all(self) -> None:
        """End ``disable_all``: jobs run again as their own switches, and the default, say."""
        self.change_cluster(all_disabled=None)

    def set_default(self, enabled: bool | None) -> None:
        """Say whether jobs without a switch of their own run; None is the default's default: they do."""
        self.change_cluster(default_enabled=enabled)

    def disable(self, job: str) -> None:
        """Switch one job off; it need not be known yet. Its live runs are told to stop, its items keep their nodes."""
        self.change_job(job, enabled=False)

    def enable(self, job: str) -> None:
        """Switch one job on, also where the default is off; "all disabled" still beats it."""
        self.change_job(job, enabled=True)

    def reset(self, job: str) -> None:
        """Forget all that was set for a job: it does as the code and the default say."""
        self._store.delete(_job_key(job))

    def change_job(self, job: str, **settings: Any) -> None:
        """Set options of one job, for all nodes, at once; None goes back to what the code says.

        Args:
            job: its id; it need not be known yet.
            settings: fields of ``JobSettings``.
        Raises:
            InvalidSetting: one is unknown or cannot be used; nothing is changed then.
        """
        self._change(_job_key(job), stored.JobSettings.__dataclass_fields__, settings)

    def change_cluster(self, **settings: Any) -> None:
        """Set options of the cluster, at once; None goes back to what the code says.

        Args:
            settings: fields of ``ClusterSettings``.
        Raises:
            InvalidSetting: one is unknown or cannot be used; nothing is changed then.
        """
        self._change(stored.CLUSTER, stored.ClusterSettings.__dataclass_fields__, settings)

    def drain(self, node: str) -> None:
        """Give a node no items until ``undrain``: those it has move away. It stays drained over its restarts.

        An announced restart of the node is called off: its share is given to the others for good.
        """
        self._mark(NodeMark(check_id("node", node), "drained"))
        entry = self._store.get(mark_key(node))
        mark = None if entry is None else decode_mark(node, entry.value)
        if entry is not None and mark is not None and mark.state == "drained":
            self._forget_reserved(node, At(entry))

    def announce_restart(self, node: str, *, timeout_s: float = 300.0) -> None:
        """Move a node's items away, and keep its share for it: back, it gets exactly those, and nothing else moves.

        It is back when it was started anew; not when it lost its session and registers again. Announced again before
        that, the time counts anew. A drained node stays drained: nothing waits for it, and nothing is changed.

        Args:
            node: a living node.
            timeout_s: seconds that its share is kept; after that it is shared out for good.
        Raises:
            UnknownNode: no such node lives; the message lists those that do.
            InvalidSetting: timeout_s is no number of seconds.
        """
        if not is_number(timeout_s, 0.0) or timeout_s > MOST_DURATION_S:
            raise InvalidSetting(f"timeout_s is {timeout_s!r}; give a number of seconds from 0 to {MOST_DURATION_S:g}")
        entry = self._store.get(keys.alive(check_id("node", node)))
        if entry is None:
            living = ", ".join(self._store.children(keys.ALIVE)) or "none"
            raise UnknownNode(f"node {node!r} does not live in this cluster; living are: {living}")
        member = Member.decode(node, entry.value)
        self._mark(
            NodeMark(node, "restarting", incarnation=member.incarnation, start=member.start, timeout_s=timeout_s)
        )

    def undrain(self, node: str) -> bool:
        """Give a node its part again, or call an announced restart off; False when nothing was said of it."""
        found = self._store.delete(mark_key(check_id("node", node)))
        self._forget_reserved(node, Absent(mark_key(node)))
        return found

    def wait_drained(self, node: str, timeout_s: float | None = None) -> None:
        """Wait until a node has no items and holds no locks: then it can be stopped without a gap.

        Raises:
            WaitTimeout: it still has some; the message says what.
        """
        clock = self._store.clock
        until = None if timeout_s is None else clock.now() + timeout_s
        with self._store.mirror(keys.assigned(node)) as share:
            share.wait_until(lambda state: not state, timeout_s)
        while True:
            locks = lock_states(self._store)
            held = [state.name for state in locks if state.holder is not None and state.holder.label == node]
            if not held:
                return
            left_s = math.inf if until is None else until - clock.now()
            if left_s <= 0:
                more = f" and {len(held) - 1} more" if len(held) > 1 else ""
                raise WaitTimeout(
                    f"node {node} has no items any more, but still runs {held[0]}{more} after {timeout_s:g} s; "
                    "wait longer, or look at what its runs do when they are told to stop"
                )
            clock.wait(threading.Event(), min(left_s, _POLL_S))

    def force_release(self, job: str, item: str, *, reason: str) -> AuditRecord:
        """Free an item's lock by hand, and write down who did, and why.

        A node that holds it and lives tells its run to stop, and every fenced write of that run is refused from now on.
        Not promised: that the run has stopped before the item starts elsewhere; be sure that it does no harm.

        Raises:
            LockNotHeld: nobody holds it.
            Conflict: it changed hands at this very moment; look again.
        """
        name = keys.lock_name(check_id("job", job), keys.check_item(item))
        at = datetime.now(UTC)
        record: list[AuditRecord] = []

        def written_down(before: LockState) -> list[Op]:
            when = utc_text(at.timestamp())
            by = self._by or current_user()
            record.append(AuditRecord(job, item, before.token, str(before.holder), by, when, reason))
            return [Create(f"{AUDIT}/{at.timestamp():017.6f}-{uuid.uuid4().hex[:8]}", record[0].encode())]

        before = force_release(self._store, name, also=written_down)
        if before is None:
            raise LockNotHeld(f"the lock of item {item!r} of job {job} is free; nothing was changed")
        return record[0]

    def run_now(self, job: str, items: Iterable[str] | None = None, *, within_s: float = 3600.0) -> RunRequest:
        """Ask for a run of a job's items, now and once in the cluster, by the nodes that hold their locks.

        A run that goes on, or begins at its time, is waited for: two runs of an item never overlap. The schedule goes
        on as if nothing had been. A run that is cut short is run again. Nothing waits here; see ``wait_for_runs``.

        Args:
            job: the job's id.
            items: the items to run, 100 at most; None for all of the job's.
            within_s: seconds after which no run of it begins any more.
        Raises:
            ValueError: the id or an item cannot be used, or there are too many of them.
        """
        return request_run(self._store, job, items, by=self._by or current_user(), within_s=within_s)

    def wait_for_runs(self, request: RunRequest, timeout_s: float) -> list[RunResult]:
        """Wait until each item of a request has had its run, and return how they ended; the request is forgotten then.

        Raises:
            WaitTimeout: not all have; what has not begun is not begun any more.
        """

        def wanted() -> frozenset[str]:
            pool = frozenset(read(self._store, keys.pool(request.job)).packed.items)
            return pool if request.items is None else pool.intersection(request.items)

        return wait_for_runs(self._store, request, wanted, timeout_s)

    def _mark(self, mark: NodeMark) -> None:
        key = mark_key(mark.node)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        signed = replace(mark, by=self._by or current_user(), at=at)

        def write(tx: Tx) -> None:
            found = tx.get(key)
            before = None if found is None else decode_mark(mark.node, found.value)
            after = signed.merged_with(before)
            if after != before:
                tx.put(key, after.encode())

        self._store.transact(write)

    def _forget_reserved(self, node: str, unchanged: Check) -> None:
        """Delete what waits for a node; left to the manager if its mark has changed meanwhile."""
        below = self._store.list(reserved_key(node), recursive=True)
        with contextlib.suppress(Conflict):
            commit_all(self._store, [unchanged], [Delete(each.key) for each in below])

    def _change(self, key: str, known: dict[str, Any], settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            if name not in known:
                raise InvalidSetting(f"setting {name!r} is not known; known are {', '.join(known)}")
            if value is not None:
                settings[name] = stored.encoded(name, value)

        def write(tx: Tx) -> None:
            before = tx.get(key)
            document = {} if before is None else _parse_stored(key, before.value)
            document.update(settings)
            document = {name: value for name, value in document.items() if value is not None and name != "changed"}
            if document:
                at = utc_text(datetime.now(UTC).timestamp())
                document["changed"] = {"by": self._by or current_user(), "at": at}
                tx.put(key, encode(document))
            elif before is not None:
                tx.delete(key)

        self._store.transact(write)


def _job_key(job: str) -> str:
    try:
        return f"{stored.JOBS}/{check_id('job', job)}"
    except ValueError as error:
        raise InvalidSetting(str(error)) from None


def _parse_stored(key: str, value: bytes) -> dict[str, Any]:
    try:
        return stored.parse_document(value)
    except InvalidSetting as error:
        raise InvalidSetting(
            f"{key} cannot be changed, for what is there was not written by latchwork: {error}"
        ) from None
