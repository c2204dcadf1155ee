"""Cron progress: each fire time is stored before its run starts, so that it starts once per item in the cluster.

Keys:   fired/<job>/<record>         JSON; progress of a group of items, rewritten at each start and each end
        fired/<job>/<record>/items   JSON list; the sorted items of the group, written once

A progress record belongs to one owner of locks and contains the greatest fencing token of its items' locks. A later
owner of an item's lock has a greater token. Of two records with the same item, the one with the greater token is newer,
whenever it was written.

A write is fenced by the owner of the items' locks: a node that takes over a lock first deletes that owner, after which
the former node can no longer write. Runs that start together share one write: the first thread writes for all that
wait. docs/design/jobs.md lists the races.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Annotated

from msgspec import Meta, Struct

from latchwork._base.decoding import Count, Decoder, Positive, Timestamp, Whole, encode
from latchwork._base.interrupts import condition, mutex
from latchwork._base.text import short
from latchwork.errors import BadRecord, Conflict, LatchworkError, LockLost, OutcomeUnknown
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.chunked_set import commit_all
from latchwork.jobs.stored.keys import cluster_store
from latchwork.schedules import NO_JITTER, Cron, CronStep, FireProgress, Jitter, describe_rule, find_next_step
from latchwork.store import Store, Tx
from latchwork.types import Absent, At, Check, Create, Delete, Entry, Exists, Put

log = logging.getLogger(__name__)

FIRED = "fired"

_RECORD_ITEMS = 2_000
_RECORD_BYTES = 200_000
_WAIT_S = 1.0
#: The nonce of a state begins with this if an operator has set it back.
_SET_BACK = "set-back-"
_NOTHING = FireProgress(0.0)


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """The cron progress of a group of items whose locks have the same owner.

    Attributes:
        name: Name of the record; never reused.
        token: Greatest fencing token of its items' locks.
        owner: ID of the owner of these locks.
        items: Sorted, unique items (at least one).
        fired: Progress of each item, in the same order.
    """

    name: str
    token: int
    owner: str
    items: tuple[str, ...]
    fired: tuple[FireProgress, ...]

    def encode_state(self, nonce: str) -> bytes:
        """Encode the cron progress of all items as JSON, without the names of the items.

        Args:
            nonce: A unique text that distinguishes this write from others.
        """
        kinds = list(dict.fromkeys(self.fired))
        number = {kind: index for index, kind in enumerate(kinds)}
        rules, of = None, None
        if any(kind.rule for kind in kinds):
            rules = tuple(kind.rule for kind in kinds)
        if len(kinds) > 1:
            of = tuple((index, len(list(run))) for index, run in groupby(number[each] for each in self.fired))
        fired = tuple((kind.through, kind.running) for kind in kinds)
        return encode(StoredProgress(self.token, self.owner, nonce, fired, rules, of))

    def encode_items(self) -> bytes:
        """Encode the names of the items as JSON."""
        return encode(self.items)


class StoredProgress(Struct, frozen=True, omit_defaults=True):
    """The stored form of a progress record, without the names of its items.

    Attributes:
        token: As in ``ProgressRecord``.
        owner: As in ``ProgressRecord``.
        nonce: Distinguishes writes, and shows whether ``reset_future_progress`` or the owner of the locks wrote the
            record.
        fired: The distinct states of items: the last fire time that started, and the fire time of the active run.
        rules: The schedule of each state; None if none has one.
        of: Sequences of items with the same state, as the index of the state and the number of items; None if all items
            have the first state.
    """

    token: Whole
    owner: str
    nonce: str
    fired: tuple[tuple[Timestamp, Timestamp | None], ...]
    rules: tuple[str, ...] | None = None
    of: tuple[tuple[Count, Positive], ...] | None = None


_STATE: Decoder[StoredProgress] = Decoder(StoredProgress, "the state of a record")
_ITEMS: Decoder[tuple[str, ...]] = Decoder(Annotated[tuple[str, ...], Meta(min_length=1)], "the items of a record")


def decode_progress_record(name: str, encoded_state: bytes, encoded_items: bytes) -> ProgressRecord:
    """Decode a stored progress record.

    Args:
        name: Name of the record.
        encoded_state: Value that ``encode_state`` returned.
        encoded_items: Value that ``encode_items`` returned.
    Raises:
        BadRecord: The values are unreadable.
    """
    try:
        found, listed = _STATE.decode(encoded_state), _ITEMS.decode(encoded_items)
        return ProgressRecord(name, found.token, found.owner, listed, _decode_item_progress(found, len(listed)))
    except BadRecord as error:
        raise BadRecord(f"progress record {name} cannot be read: {error}") from None


def _decode_item_progress(state: StoredProgress, item_count: int) -> tuple[FireProgress, ...]:
    """Expand the cron progress of each item from its compressed form, after checking the lengths.

    Args:
        state: The stored form of the record.
        item_count: Number of items in the record.
    Returns:
        The progress of each item, in the order of the record's items.
    Raises:
        BadRecord: The lengths do not match.
    """
    rules = ("",) * len(state.fired) if state.rules is None else state.rules
    if len(rules) != len(state.fired):
        raise BadRecord(f"it has {len(state.fired)} states and {len(rules)} rules")
    kinds = [FireProgress(through, running, rule) for (through, running), rule in zip(state.fired, rules, strict=True)]
    runs = ((0, item_count),) if state.of is None else state.of
    for index, length in runs:
        if index >= len(kinds) or length > item_count:
            raise BadRecord(f"it has a run of states {short([index, length])}")
    if sum(length for _, length in runs) != item_count:
        raise BadRecord(f"it has {item_count} items, and states for {sum(length for _, length in runs)}")
    return tuple(kinds[index] for index, length in runs for _ in range(length))


def find_newest_by_item(records: Iterable[ProgressRecord]) -> dict[str, tuple[ProgressRecord, FireProgress]]:
    """Find the newest progress record of each item. Return the record and the item's progress in it, by item."""
    found: dict[str, tuple[ProgressRecord, FireProgress]] = {}
    for record in sorted(records, key=lambda record: (record.token, record.name)):
        found.update({item: (record, fired) for item, fired in zip(record.items, record.fired, strict=True)})
    return found


def find_obsolete_records(
    records: Sequence[ProgressRecord], work_pool: frozenset[str] | None = None
) -> list[ProgressRecord]:
    """Return the records that can be deleted because they are not the newest record of any existing item.

    Args:
        records: All stored progress records of a job.
        work_pool: Items of the job that exist; None counts all items as existing.
    """
    newest = find_newest_by_item(records)
    return [
        record
        for record in records
        if all(
            newest[item][0] is not record or (work_pool is not None and item not in work_pool) for item in record.items
        )
    ]


@dataclass(frozen=True, slots=True)
class HeldItem:
    """The lock of one item: its fencing token and the ID of its owner."""

    token: int
    owner_id: str


@dataclass(slots=True)
class _OwnRecord:
    """A progress record that this node writes, with its last known entry in the store."""

    record: ProgressRecord
    entry: Entry
    fired: dict[str, FireProgress]


@dataclass(eq=False, slots=True)
class _ProgressRequest:
    """The progress that one thread wants to claim or write. ``done`` is guarded by the condition."""

    claims: Mapping[str, HeldItem] = field(default_factory=dict)
    initial: FireProgress = _NOTHING
    reread: bool = False
    fired: dict[str, FireProgress] = field(default_factory=dict)
    done: bool = False
    error: BaseException | None = None


class CronProgress:
    """Stores which fire times of a job have started on this node, by item. Thread-safe; calls wait for the store.

    Args:
        store: The cluster's store.
        job_id: ID of the job.
        prefix: Key prefix of the progress of all jobs.
        checks: Checks for each write, in addition to the owner of the locks.
    """

    def __init__(self, store: Store, job_id: str, prefix: str = FIRED, checks: Sequence[Check] = ()) -> None:
        self._store = store
        self.job_id = job_id
        self._above = prefix
        self._also = tuple(checks)
        self._prefix = f"{prefix}/{job_id}"
        self._mutex = mutex()
        self._changed = condition(self._mutex)
        self._requested: list[_ProgressRequest] = []
        self._busy = False
        self._own: dict[str, _OwnRecord] = {}  # by record name; used only by the busy thread
        self._record_of: dict[str, str] = {}

    def claim(
        self, locks: Mapping[str, HeldItem], initial: FireProgress, *, reread: bool = False
    ) -> dict[str, FireProgress]:
        """Make this node the writer of the cron progress of these items, and return their progress.

        Args:
            locks: Lock of each item; all must be held.
            initial: Progress of items that have never run.
            reread: Read claimed progress from the store again, because an operator may have reset it.
        Returns:
            The progress of each item.
        Raises:
            LockLost: Another node holds one of the locks by now.
            LatchworkError: The store could not be used: try again.
        """
        request = _ProgressRequest(claims=locks, initial=initial, reread=reread)
        self._execute(request)
        return request.fired

    def write(self, fired: Mapping[str, FireProgress]) -> None:
        """Store the cron progress of claimed items: the fire time that started last, and the fire time of the active
        run.

        Args:
            fired: New progress of each item.
        Raises:
            LockLost: Another node holds one of the locks by now: nothing is stored, and nothing may start.
            LatchworkError: The write may have failed. The next write includes this progress.
        """
        self._execute(_ProgressRequest(fired=dict(fired)))

    def _execute(self, request: _ProgressRequest) -> None:
        """Execute a request in one batch with the requests of all waiting threads.

        If another thread is already executing a batch, wait until that thread has executed this request.
        """
        clock = self._store.clock
        with self._mutex:
            self._requested.append(request)
            while not request.done and self._busy:
                clock.wait_condition(self._changed, _WAIT_S)
            if request.done:
                return self._raise_error(request)
            self._busy = True
            batch, self._requested = self._requested, []
        try:
            self._execute_batch(batch)
        finally:
            with self._mutex:
                for each in batch:
                    each.done = True
                self._busy = False
                self._changed.notify_all()
        return self._raise_error(request)

    @staticmethod
    def _raise_error(request: _ProgressRequest) -> None:
        if request.error is not None:
            raise request.error

    def _execute_batch(self, batch: list[_ProgressRequest]) -> None:
        claims = [request for request in batch if request.claims]
        writes = [request for request in batch if not request.claims]
        for requests, act in ((claims, self._claim), (writes, self._write)):
            if requests:
                try:
                    act(requests)
                except Exception as error:
                    for request in requests:
                        request.error = request.error or error

    def _claim(self, requests: list[_ProgressRequest]) -> None:
        for name in {
            self._record_of.get(item, "") for request in requests if request.reread for item in request.claims
        }:
            if (own := self._own.get(name)) is not None:
                self._adopt_reset(own, self._store.get(f"{self._prefix}/{name}"))
        wanted = {item: (hold, request.initial) for request in requests for item, hold in request.claims.items()}
        new = {item: pair for item, pair in wanted.items() if not self._is_ours(item, pair[0])}
        if new:
            self._create_records(new)
        for request in requests:
            request.fired = {item: self._own[self._record_of[item]].fired[item] for item in request.claims}

    def _is_ours(self, item: str, hold: HeldItem) -> bool:
        own = self._own.get(self._record_of.get(item, ""))
        return own is not None and own.record.owner == hold.owner_id and own.record.token >= hold.token

    def _create_records(self, claims: Mapping[str, tuple[HeldItem, FireProgress]]) -> None:
        """Store new progress records of this node for these items, and delete the records that become obsolete.

        The new records contain the progress from the newest stored record of each item.

        Args:
            claims: Lock of each item, and its progress if nothing is stored.
        """
        stored = read_progress_records(self._store, self.job_id, self._above)
        newest = find_newest_by_item(record for record, _ in stored)
        by_owner: dict[str, list[str]] = {}
        for item in sorted(claims):
            by_owner.setdefault(claims[item][0].owner_id, []).append(item)
        for owner, items in by_owner.items():
            for part in _split_items(items):
                fired = tuple(newest[item][1] if item in newest else claims[item][1] for item in part)
                token = max(claims[item][0].token for item in part)
                self._create_record(ProgressRecord(uuid.uuid4().hex, token, owner, tuple(part), fired))
        ours = {own.record.name: own for own in self._own.values()}
        left = find_obsolete_records(
            [*(record for record, _ in stored if record.name not in ours), *(own.record for own in ours.values())]
        )
        self._delete_records({record.name for record in left}, {record.name: entry for record, entry in stored})

    def _create_record(self, record: ProgressRecord) -> None:
        key = f"{self._prefix}/{record.name}"
        state = record.encode_state(uuid.uuid4().hex)
        try:
            done = self._store.commit(
                self._build_checks(record), [Create(key, state), Create(f"{key}/items", record.encode_items())]
            )
            entry = done.entries[0]
        except (Conflict, OutcomeUnknown) as error:
            found = self._store.get(key)
            if found is None or found.value != state:
                raise self._build_write_error(record, error) from error
            entry = found
        self._own[record.name] = _OwnRecord(record, entry, dict(zip(record.items, record.fired, strict=True)))
        self._record_of.update(dict.fromkeys(record.items, record.name))

    def _delete_records(self, names: Collection[str], entries_by_name: Mapping[str, Entry]) -> None:
        """Delete obsolete progress records. If that fails, the leader deletes them later.

        Args:
            names: Names of the records.
            entries_by_name: Their entries as they were read.
        """
        for name in names:
            own = self._own.pop(name, None)
            entry = own.entry if own is not None else entries_by_name[name]
            try:
                delete_progress_record(self._store, self._prefix, name, entry, [])
            except LatchworkError as error:
                log.debug("job %s: progress record %s is left to the sweep: %s", self.job_id, name, error)

    def _write(self, requests: list[_ProgressRequest]) -> None:
        touched: dict[str, list[_ProgressRequest]] = {}
        for request in requests:
            for item, fired in request.fired.items():
                name = self._record_of.get(item, "")
                if name not in self._own:
                    request.error = LockLost(
                        f"progress of item {item!r} of job {self.job_id} was not claimed, or was released"
                    )
                    continue
                self._own[name].fired[item] = fired
                touched.setdefault(name, []).append(request)
        for name, waiting in touched.items():
            try:
                self._save_record(self._own[name])
            except LatchworkError as error:
                for request in waiting:
                    request.error = request.error or error

    def _save_record(self, own: _OwnRecord) -> None:
        """Store the progress in one record of this node.

        A conflict may be reported although the owner of the locks still exists. Then an earlier write of this node,
        whose outcome was unknown, has succeeded.

        Raises:
            LockLost: The locks were lost, or an operator has reset the progress: claim the items again.
        """
        own.record = replace(own.record, fired=tuple(own.fired[item] for item in own.record.items))
        key = f"{self._prefix}/{own.record.name}"
        state = own.record.encode_state(uuid.uuid4().hex)
        for attempt in (1, 2):
            try:
                done = self._store.commit([*self._build_checks(own.record), At(own.entry)], [Put(key, state)])
                own.entry = done.entries[0]
            except (Conflict, OutcomeUnknown) as error:
                found = self._store.get(key)
                if found is None:
                    raise self._build_write_error(own.record, error) from error
                if self._adopt_reset(own, found):
                    raise LockLost(f"progress of job {self.job_id} was set back by an operator: try again") from error
                own.entry = found
                if found.value == state:
                    return
                if attempt == 2 or isinstance(error, OutcomeUnknown) or self._is_owner_gone(own.record):
                    raise self._build_write_error(own.record, error) from error
            else:
                return

    @staticmethod
    def _adopt_reset(own: _OwnRecord, stored_entry: Entry | None) -> bool:
        """If an operator has reset the stored progress of a record, use the stored progress from now on.

        A run that was about to start on this node counts as not started. A run that has ended on this node stays ended.

        Args:
            own: The record as this node knows it.
            stored_entry: Its current entry in the store; None if it was deleted.
        Returns:
            Whether the progress was reset.
        """
        if stored_entry is None or stored_entry.version == own.entry.version:
            return False
        state = _STATE.decode(stored_entry.value)
        if not state.nonce.startswith(_SET_BACK):
            return False
        stored = zip(own.record.items, _decode_item_progress(state, len(own.record.items)), strict=True)
        own.entry = stored_entry
        own.fired = {item: fired.after_end() if own.fired[item].running is None else fired for item, fired in stored}
        return True

    def _build_checks(self, record: ProgressRecord) -> list[Check]:
        return [Exists(f"{keys.OWNERS}/{record.owner}"), *self._also]

    def _is_owner_gone(self, record: ProgressRecord) -> bool:
        return self._store.get(f"{keys.OWNERS}/{record.owner}") is None

    def _build_write_error(self, record: ProgressRecord, error: LatchworkError) -> LatchworkError:
        """Build the error to raise for a progress record that could not be written.

        If the write has certainly failed, this node also forgets the record, so that its items can be claimed again.
        """
        if isinstance(error, OutcomeUnknown):
            return error
        self._own.pop(record.name, None)
        return LockLost(f"progress of job {self.job_id} cannot be written: its locks were lost or its items moved away")


def read_progress_records(store: Store, job_id: str, prefix: str = FIRED) -> list[tuple[ProgressRecord, Entry]]:
    """Read all progress records of a job, each with its entry. Unreadable records are logged and left out.

    Args:
        store: The cluster's store.
        job_id: ID of the job.
        prefix: Key prefix of the progress of all jobs.
    """
    return decode_progress_records(store.list(f"{prefix}/{job_id}", recursive=True), job_id, prefix)


def decode_progress_records(
    candidates: Iterable[Entry], job_id: str, prefix: str = FIRED
) -> list[tuple[ProgressRecord, Entry]]:
    """Decode the progress records of a job, each with its entry. Unreadable records are logged and left out.

    Args:
        candidates: Entries that were read, possibly with other keys among them.
        job_id: ID of the job.
        prefix: Key prefix of the progress of all jobs.
    """
    prefix = f"{prefix}/{job_id}"
    entries = {entry.key: entry for entry in candidates}
    found = []
    for key, entry in entries.items():
        items = entries.get(f"{key}/items")
        if items is not None:
            try:
                found.append((decode_progress_record(key[len(prefix) + 1 :], entry.value, items.value), entry))
            except BadRecord as error:
                log.error("job %s: %s", job_id, error)  # noqa: TRY400 - no stack needed
    return found


def read_item_progress(store: Store, job_id: str, item: str) -> FireProgress | None:
    """Read the cron progress of one item: which fire times have started. Return None if nothing is stored."""
    found = find_newest_by_item(record for record, _ in read_progress_records(cluster_store(store), job_id)).get(item)
    return None if found is None else found[1]


def reset_future_progress(store: Store, job_id: str, now_s: float) -> dict[str, float]:
    """Reset recorded fire times that are in the future to the current time. The nodes that run the items notice within
    seconds.

    Args:
        store: The cluster's store.
        job_id: ID of the job.
        now_s: Current time in seconds since the epoch.
    Returns:
        For each item that was reset, the future fire time that was recorded, in seconds since the epoch.
    """
    found: dict[str, float] = {}
    for record, entry in read_progress_records(store, job_id):

        def write(tx: Tx, name: str = record.name, key: str = entry.key, items: bytes = record.encode_items()) -> None:
            entry = tx.get(key)
            if entry is None:
                return
            record = decode_progress_record(name, entry.value, items)
            fired = tuple(each.without_future(now_s) for each in record.fired)
            changed = [each for each in zip(record.items, record.fired, fired, strict=True) if each[1] != each[2]]
            found.update({item: before.through for item, before, _ in changed})
            if changed:
                tx.put(key, replace(record, fired=fired).encode_state(_SET_BACK + uuid.uuid4().hex))

        store.transact(write)
    return found


def delete_progress_record(store: Store, job_prefix: str, name: str, entry: Entry, checks: list[Check]) -> None:
    """Delete a progress record if it has not changed since its entry was read.

    Args:
        store: The cluster's store.
        job_prefix: Key prefix of the job's progress.
        name: Name of the record.
        entry: The record's entry.
        checks: More checks for the transaction.
    Raises:
        Conflict: The record has changed, or a check does not hold.
    """
    key = f"{job_prefix}/{name}"
    store.commit([*checks, At(entry)], [Delete(key), Delete(f"{key}/items")])


def delete_obsolete_progress(store: Store, pools: Mapping[str, Iterable[str]], checks: list[Check]) -> int:
    """Delete the cron progress of jobs and items that no longer exist. The leader calls this from time to time.

    Args:
        store: The cluster's store.
        pools: Items of each existing job.
        checks: Checks for each transaction, such as the leader's fence.
    Returns:
        The number of deleted records.
    """
    swept = 0
    for job_id in store.children(FIRED):
        if job_id not in pools:
            gone = store.list(f"{FIRED}/{job_id}", recursive=True)
            same = Absent(keys.work_pool_key(job_id))  # checked in the transaction, because `pools` may be outdated
            commit_all(store, [*checks, same], [Delete(entry.key) for entry in gone])
            swept += len(gone)
            continue
        records = read_progress_records(store, job_id)
        left = {
            record.name for record in find_obsolete_records([record for record, _ in records], frozenset(pools[job_id]))
        }
        for record, entry in records:
            if record.name in left:
                delete_progress_record(store, f"{FIRED}/{job_id}", record.name, entry, checks)
                swept += 1
    return swept


def _split_items(items: list[str]) -> Iterable[list[str]]:
    part: list[str] = []
    size = 0
    for item in items:
        if part and (len(part) >= _RECORD_ITEMS or size >= _RECORD_BYTES):
            yield part
            part, size = [], 0
        part.append(item)
        size += len(item.encode()) + 4
    yield part


def describe_future_progress(job_id: str, ahead_s: float) -> str:
    """Return a warning for operators that recorded fire times of a job are in the future, and how to reset them.

    Args:
        job_id: ID of the job.
        ahead_s: Seconds by which they are in the future.
    """
    return (
        f"the cron progress of job {job_id} is {ahead_s:.0f} s in the future, because a clock was ahead: nothing "
        "starts until then; check the clocks of its nodes, and set it back with "
        f'"latchwork jobs reset-progress {job_id}"'
    )


class FireTimes:
    """Plans the next cron starts of a run, and records which have started and ended. Not thread-safe.

    Args:
        progress: Stored progress of the job.
        holds: Locks of the run's items.
    Attributes:
        ahead_s: Seconds by which the progress lies in the future, so that nothing starts; 0 if it does not.
    """

    def __init__(self, progress: CronProgress, holds: Mapping[str, HeldItem]) -> None:
        self._progress = progress
        self._holds = holds
        self._fired: dict[str, FireProgress] | None = None
        self._rerun = True
        self.ahead_s = 0.0
        self._unconfirmed: dict[str, FireProgress] = {}  # progress before a start that is stored but not confirmed

    def find_next_step(
        self, cron: Cron, now_s: float, since_s: float, *, changed_s: float | None = None, jitter: Jitter = NO_JITTER
    ) -> CronStep:
        """Find the items that start next on the cron schedule, and the time of their start.

        The first call reads the progress from the store. While that is in the future, later calls read it again,
        because an operator may reset it.

        Args:
            cron: The current schedule.
            now_s: Current time in seconds since the epoch.
            since_s: Fire times up to this one are ignored for items that have never run.
            changed_s: Time at which this node saw the schedule change: fire times up to this one are ignored for all
                items. None if it has not changed here.
            jitter: Delay between the fire times and the starts of these items.
        Returns:
            The items, their fire time, and the seconds until they start.
        Raises:
            LatchworkError: The store could not be used, or a lock is lost: try again.
        """
        self._rerun = cron.rerun_interrupted
        rule = describe_rule(cron)
        earliest_s = max(since_s, changed_s or since_s)
        if self._fired is None or self.ahead_s:
            self._fired = self._progress.claim(
                self._holds, FireProgress(earliest_s, rule=rule), reread=self.ahead_s > 0.0
            )
        self._update_ahead_s(max(now_s, earliest_s))
        self._store_schedule_change(
            {item: fired.with_rule(rule, now_s, changed_s) for item, fired in self._fired.items()}
        )
        return find_next_step(cron, self._fired, now_s, jitter)

    def _update_ahead_s(self, now_s: float) -> None:
        assert self._fired is not None
        was_ahead = self.ahead_s > 0.0
        self.ahead_s = max(each.ahead_s(now_s) for each in self._fired.values())
        if self.ahead_s and not was_ahead:
            log.warning("%s", describe_future_progress(self._progress.job_id, self.ahead_s))

    def _store_schedule_change(self, adjusted: dict[str, FireProgress]) -> None:
        """Store progress that was adjusted to a changed schedule, so that later owners of the locks read it.

        Args:
            adjusted: Progress of each item by the current schedule.
        """
        assert self._fired is not None
        changed = {item: fired for item, fired in adjusted.items() if fired != self._fired[item]}
        if changed:
            self._write(changed)
            self._fired.update(changed)

    def _write(self, fired: dict[str, FireProgress]) -> None:
        try:
            self._progress.write(fired)
        except LockLost:
            self._fired = None  # taken by another node, or swept: claim it again if the lock is still held
            raise

    def record_start(self, step: CronStep) -> None:
        """Store that the run for this fire time starts. Call it before the run starts.

        Raises:
            LatchworkError: The write may have failed: nothing may start. Call ``find_next_step`` again.
        """
        assert self._fired is not None, "ask what comes next first"
        begun = {item: self._fired[item].after_start(step.at) for item in step.items}
        self._unconfirmed = {} if self._rerun else {item: self._fired[item] for item in step.items}
        self._write(begun)
        self._fired.update(begun)

    def confirm_start(self) -> None:
        """Record that the job was called for the last stored start. A later ``undo_start`` then does nothing."""
        self._unconfirmed = {}

    def undo_start(self) -> None:
        """Store that the job was not called for the last stored start, so that its fire time is still due.

        This applies only to schedules that do not repeat interrupted runs. If the write fails, the run counts as done.
        """
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        try:
            if unconfirmed:
                self._progress.write(unconfirmed)
        except LatchworkError as error:
            log.warning("a recorded start that was never made counts as done: %s", error)

    def record_end(self, step: CronStep) -> None:
        """Store that the run for this fire time has ended. If the write fails, the next start stores it too."""
        assert self._fired is not None
        ended = {item: self._fired[item].after_end() for item in step.items}
        self._fired.update(ended)
        try:
            self._progress.write(ended)
        except LatchworkError as error:
            log.warning("the end of a run is not stored yet; on other nodes it counts as interrupted: %s", error)
