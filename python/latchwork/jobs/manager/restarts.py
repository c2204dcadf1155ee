"""Drained and restarting nodes, as the leader sees them: which nodes get no items, and which shares are reserved."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from latchwork.errors import Conflict
from latchwork.jobs.manager.rebalance import ReservedShare, Shares, WorkerView
from latchwork.jobs.stored.chunked_set import ChunkNamer, commit_all, read_set, store_set
from latchwork.jobs.stored.nodes import (
    Member,
    NodeMark,
    decode_mark,
    decode_marks,
    group_reserved_keys,
    mark_key,
    reserved_share_key,
)
from latchwork.store import Mirror, Store
from latchwork.types import Absent, At, Check, Delete, Entry, Fence, Put

log = logging.getLogger(__name__)


class RestartTracker:
    """The drained and restarting nodes during one term of leadership. Not thread-safe.

    Args:
        store: The cluster's store.
        nodes: Mirror of the node marks.
        fence: The leader's fence, checked by every write.
        tag: Unique part of the names of written chunks.
    """

    def __init__(self, store: Store, nodes: Mirror, fence: Fence, tag: str) -> None:
        self._store = store
        self._nodes = nodes
        self._fence = fence
        self._names = ChunkNamer(f"{tag}.{fence.token}r")
        self._seen: dict[str, tuple[str, float]] = {}
        self._shares: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {}
        self._written: dict[str, NodeMark] = {}  # own writes that the mirror may not show yet
        self._acted: set[str] = set()

    def list_marks(self) -> dict[str, NodeMark]:
        """Return the current mark of each drained or restarting node. Restarts whose timeout has passed are left
        out.
        """
        now = self._store.clock.now()
        found = decode_marks(self._nodes.snapshot().values())
        for node, mark in found.items():
            if mark.state == "restarting" and self._seen.get(node, ("", 0.0))[0] != _announcement_id(mark):
                self._seen[node] = (_announcement_id(mark), now)
        for node in self._seen.keys() - found.keys():
            del self._seen[node]
        return {node: mark for node, mark in found.items() if not self._is_past_timeout(mark, now)}

    def may_have_items(self, mark: NodeMark | None, members: Mapping[str, Member]) -> bool:
        """Return whether a ready node may get items. A node that is drained or about to restart may not.

        Args:
            mark: Mark of the node; None if it has none.
            members: Records of all running nodes.
        """
        if mark is None or mark.state != "restarting":
            return mark is None
        member = members[mark.node]
        return not mark.is_same_start(member.incarnation, member.start)

    def reserve_shares(self, ready: Mapping[str, WorkerView], shares: Shares) -> None:
        """Store the shares of nodes whose restart was announced, before their items move.

        Args:
            ready: Nodes that may get items.
            shares: The stored assignment.
        Raises:
            Conflict: Leadership is lost, or the mark has changed: try again.
        """
        for node, shown in self.list_marks().items():
            if shown.state != "restarting" or self._latest_mark(shown).is_reserved:
                continue
            entry = self._store.get(mark_key(node))  # the mirror may be outdated, and a reserved share must be kept
            mark = None if entry is None else decode_mark(node, entry.value)
            if entry is None or mark is None or mark.state != "restarting":
                continue
            if mark.is_reserved:
                self._written[node] = mark
                continue
            mine = {job: workers[node] for job, workers in shares.items() if node in workers}
            stale = set(self._store.children(reserved_share_key(node))) - set(mine)
            checks: list[Check] = [self._fence, At(entry)]  # so that nothing is stored for a removed mark
            for job in sorted({*mine, *stale}):
                store_set(
                    self._store, reserved_share_key(node, job), mine.get(job, ()), checks=checks, new_name=self._names
                )
            worker = ready.get(node, WorkerView(1.0, frozenset(mine)))
            done = mark.with_reserved_share(worker.weight, tuple(sorted(worker.jobs)), worker.labels)
            self._store.commit(checks, [Put(mark_key(node), done.to_bytes())])
            self._shares[node] = (_announcement_id(mark), mine)
            self._written[node] = done
            log.info("node %s is restarting: its %d items are reserved", node, sum(map(len, mine.values())))

    def list_reserved_shares(
        self, marks: Mapping[str, NodeMark], workers: Mapping[str, WorkerView]
    ) -> dict[str, ReservedShare]:
        """Return the reserved share of each restarting node, by node. Its items return to the node.

        Args:
            marks: Result of ``list_marks``.
            workers: Nodes that may get items now.
        """
        found = {}
        for node, shown in marks.items():
            mark = self._latest_mark(shown)
            if mark.state == "restarting" and mark.weight is not None:
                away = None if node in workers else WorkerView(mark.weight, frozenset(mark.jobs), mark.labels)
                found[node] = ReservedShare(away, self._items(mark))
        return found

    def delete_finished_marks(self, marks: Mapping[str, NodeMark], workers: Mapping[str, WorkerView]) -> None:
        """Delete the marks of restarted nodes that are ready again, and of restarts whose timeout has passed.

        It also deletes reserved shares whose mark was removed or replaced.

        Args:
            marks: Result of ``list_marks``.
            workers: Nodes that may get items now.
        """
        entries = self._nodes.snapshot()
        found = decode_marks(entries.values())
        below = group_reserved_keys(entries)
        for node in sorted({*found, *below}):
            mark, entry = found.get(node), entries.get(mark_key(node))
            try:
                if mark is None or mark.state != "restarting":
                    self._forget_reserved(node, below.get(node, []), entry)
                elif entry is not None and (node not in marks or node in workers):
                    if node not in marks:
                        log.warning(
                            "node %s did not return within %.3g s: its items are distributed", node, mark.timeout_s
                        )
                    self._store.commit([self._fence, At(entry)], [Delete(entry.key)])
                    self._forget_reserved(node, below.get(node, []), None)
            except Conflict:
                log.debug("the mark of node %s has changed, checking it again", node)

    def _forget_reserved(self, node: str, below: Sequence[str], mark: Entry | None) -> None:
        same = Absent(mark_key(node)) if mark is None else At(mark)
        commit_all(self._store, [self._fence, same], [Delete(key) for key in below])

    def detect_timeout(self, now: float) -> bool:
        """Return whether the timeout of any restart has passed since the last call. Each restart counts once.

        Args:
            now: Current time by the monotonic clock, in seconds.
        """
        late = {_announcement_id(mark) for mark in self._timed() if self._is_past_timeout(mark, now)} - self._acted
        self._acted |= late
        return bool(late)

    def due_in_s(self, now: float) -> float | None:
        """Return the seconds until the next timeout of a restart; None if no node is restarting.

        Args:
            now: Current time by the monotonic clock, in seconds.
        """
        waits = [self._seen[mark.node][1] + mark.timeout_s - now for mark in self._timed()]
        return min((max(0.0, wait) for wait in waits), default=None)

    def _timed(self) -> list[NodeMark]:
        found = decode_marks(self._nodes.snapshot().values())
        marks = [mark for mark in found.values() if mark.state == "restarting" and mark.node in self._seen]
        return [mark for mark in marks if _announcement_id(mark) not in self._acted]

    def _is_past_timeout(self, mark: NodeMark, now: float) -> bool:
        return mark.state == "restarting" and now >= self._seen[mark.node][1] + mark.timeout_s

    def _latest_mark(self, mark: NodeMark) -> NodeMark:
        written = self._written.get(mark.node)
        return written if written is not None and _announcement_id(written) == _announcement_id(mark) else mark

    def _items(self, mark: NodeMark) -> dict[str, tuple[str, ...]]:
        known = self._shares.get(mark.node)
        if known is None or known[0] != _announcement_id(mark):
            jobs = self._store.children(reserved_share_key(mark.node))
            shares = {job: read_set(self._store, reserved_share_key(mark.node, job)).chunked.items for job in jobs}
            known = self._shares[mark.node] = (_announcement_id(mark), shares)
        return known[1]


def _announcement_id(mark: NodeMark) -> str:
    """Return a text that distinguishes this announcement of a restart from others of the same node."""
    return f"{mark.incarnation} {mark.at} {mark.by}"
