"""Takes items from a work queue: the first ones that no client has claimed, many in one transaction.

A claim is written into its item in the transaction that counts the attempt. The transaction checks that the item is
unchanged since it was read, that our claim holder exists, and that the holder of an earlier claim of the item does not.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from msgspec import Struct

from latchwork._base.decoding import encode
from latchwork.errors import BadRecord, Conflict, LatchworkError, OutcomeUnknown
from latchwork.primitives.queue.claims import CreateClaimed, QueueClaim, QueueInfo
from latchwork.primitives.queue.items import (
    ClaimHolder,
    QueueItem,
    build_dead_letter_put,
    generate_dead_letter_id,
    read_for_display,
)
from latchwork.primitives.queue.partition_reader import (
    CACHE_READS,
    CACHE_S,
    EMPTY_CACHE_S,
    MAX_FOREIGN_ITEMS,
    NO_SHARD,
    ConsumerCache,
    ConsumerShard,
    PartitionReader,
    StartHint,
    read_head,
)
from latchwork.primitives.queue.unconfirmed_claims import UnconfirmedClaim, UnconfirmedClaims
from latchwork.store.session import Session
from latchwork.store.steps import StepCoroutine, ask, call_user_function, coroutine_of
from latchwork.types import Check, Delete, Entry, Exists, Op, Put

_log = logging.getLogger(__name__)

#: Maximum number of checks or writes, and of bytes, in one transaction.
MAX_WRITES, MAX_BYTES = 90, 500_000
#: Maximum number of claims in one transaction.
MAX_CLAIMS = MAX_WRITES // 2
#: Extra items that a consumer with a shard reads. It keeps them, and takes them without another read.
READ_AHEAD_ITEMS = 124

#: Seconds for which a take may start after many claimed items. An item released before them waits that long.
HINT_S = 0.25

#: Checks and writes of the caller.
Parts = tuple[Sequence[Check], Sequence[Op]]
Accept = Callable[[QueueItem], bool]
Extra = Callable[[QueueItem], Parts]
T = TypeVar("T")
R = TypeVar("R", Entry, QueueItem)


def add_nothing(_item: QueueItem) -> Parts:
    """Return no checks and no writes. The default of ``TakeRequest.extra``."""
    return (), ()


def accept_all(_item: QueueItem) -> bool:
    """Accept any item. The default of ``TakeRequest.accept``."""
    return True


def get_whole_partition(_partition: str) -> ConsumerShard:
    """Return a shard that contains the whole partition. The default of ``TakeRequest.shard``."""
    return NO_SHARD


class TakeRequest(Struct, frozen=True):
    """The arguments of a call that takes items.

    Attributes:
        partitions: The partitions to search, in this order.
        limit: Maximum number of items.
        accept: Returns whether an item is wanted.
        extra: Returns further checks and writes for the transaction that takes an item.
        extra_for_dead_letter: Returns further checks and writes for the transaction that makes an item a dead letter.
        on_refused: Called with an item whose extra checks failed.
        on_dead_letter: Called with an item that became a dead letter.
        shard: Returns the shard of a partition that this consumer prefers.
    """

    partitions: Sequence[str]
    limit: int = 1
    accept: Accept = accept_all
    extra: Extra = add_nothing
    extra_for_dead_letter: Extra = add_nothing
    on_refused: Callable[[QueueItem], object] | None = None
    on_dead_letter: Callable[[QueueItem], object] | None = None
    shard: Callable[[str], ConsumerShard] = get_whole_partition


class TakeAttempt(Struct, frozen=True, eq=False):
    """An attempt to take one item.

    Attributes:
        source: The entry or item from which it was read.
        item: The item as it was read.
        free: Checks that the item is unchanged and not claimed.
        checks: Further checks of the caller.
        ops: Further writes of the caller.
    """

    source: Any
    item: QueueItem
    free: Sequence[Check]
    checks: Sequence[Check]
    ops: Sequence[Op]

    @property
    def size(self) -> int:
        """The approximate number of bytes that the attempt adds to a transaction."""
        values = sum(len(op.value) for op in self.ops if not isinstance(op, Delete)) if self.ops else 0
        return len(self.item.value) + 4 * len(self.item.key) + values + 600


def choose_first_batch(attempts: Sequence[TakeAttempt], limit: int) -> list[TakeAttempt]:
    """Return as many of the first attempts as fit into one transaction, but at least one.

    Args:
        attempts: The attempts, in order.
        limit: Maximum number of attempts to return.
    """
    batch: list[TakeAttempt] = []
    keys: set[str] = set()
    checks: set[Check] = set()
    writes = size = 0
    for attempt in attempts[:limit]:
        written_keys = {op.key for op in attempt.ops}
        checks.update(attempt.free, attempt.checks)
        writes += 1 + len(attempt.ops)
        size += attempt.size
        is_full = writes > MAX_WRITES or len(checks) > MAX_WRITES or size > MAX_BYTES
        if batch and (is_full or not keys.isdisjoint(written_keys)):
            break
        keys |= written_keys
        batch.append(attempt)
    return batch


def split_by_refusal(
    batch: Sequence[TakeAttempt], failed: Sequence[object]
) -> tuple[list[TakeAttempt], list[TakeAttempt]]:
    """Split the attempts of a refused transaction by the reason of the refusal.

    Args:
        batch: The attempts.
        failed: The checks and writes that failed.
    Returns:
        The attempts whose items other clients have taken or changed, and those whose extra checks or writes failed.
    """
    keys = {getattr(part, "key", None) for part in failed}
    lost = [attempt for attempt in batch if not keys.isdisjoint(getattr(check, "key", None) for check in attempt.free)]
    refused = [attempt for attempt in batch if attempt not in lost and _is_refused(attempt, failed, keys)]
    return lost, refused


def _is_refused(attempt: TakeAttempt, failed: Sequence[object], failed_keys: set[str | None]) -> bool:
    """Return whether a check or a write that the caller added to an attempt has failed."""
    return any(check in failed for check in attempt.checks) or any(op.key in failed_keys for op in attempt.ops)


def _rotate_randomly(free: list[R]) -> list[R]:
    """Return the list rotated by a random number, so that it starts at a random item."""
    start = random.randrange(len(free)) if free else 0
    return free[start:] + free[:start]


class ItemClaimer:
    """Takes items from the partitions of one queue, and remembers where free items are. Thread-safe.

    Args:
        info: The queue.
        client_info: Information about this client that is stored with its claims.
    """

    def __init__(self, info: QueueInfo, client_info: dict[str, object]) -> None:
        self._info = info
        self._store = info.store
        self._keys = info.keys
        self._what = info.what
        self._client_info = encode(client_info)
        self._unconfirmed = UnconfirmedClaims(info.store, info.what)
        self._holders: dict[str, ClaimHolder] = {}
        self._hints: dict[str, StartHint] = {}
        self._caches: dict[str, ConsumerCache] = {}

    async def try_take(self, request: TakeRequest, session: Session) -> list[QueueClaim]:
        """Take the first free items of the requested partitions. Return the claims, perhaps none."""
        return await self._collect_claims(partial(self._take_from_partitions, request, session))

    async def take_items(self, items: Sequence[QueueItem], request: TakeRequest, session: Session) -> list[QueueClaim]:
        """Take those of the given items that are unchanged since they were read. Return the claims in the order of
        ``items``.
        """
        claims = await self._collect_claims(partial(self._take_from_items, list(items), request, session))
        if len(claims) > 1:
            positions = {item.key: at for at, item in enumerate(items)}
            claims.sort(key=lambda claim: positions.get(claim.item.key, len(positions)))
        return claims

    async def take_known_or_search(
        self, items: Sequence[QueueItem], request: TakeRequest, session: Session
    ) -> list[QueueClaim]:
        """Take the first of the given items that is unchanged since it was read. If there is none, search the
        partition.

        Returns:
            The claim in a list, or an empty list.
        """
        return await self._collect_claims(partial(self._take_known_or_search, items, request, session))

    async def _take_known_or_search(
        self, items: Sequence[QueueItem], request: TakeRequest, session: Session, claims: list[QueueClaim]
    ) -> None:
        (partition,) = request.partitions
        await self._adopt_unconfirmed_claims(request, session, claims)
        if not claims:
            await self._take_from_items(list(items), request, session, claims)
        await self._take_from_partition(partition, request, session, claims)

    async def take_first(self, request: TakeRequest, session: Session, *, is_conclusive: bool) -> list[QueueClaim]:
        """Take the first free item of one partition.

        Args:
            request: The arguments of the take, with one partition.
            session: The session of the claim.
            is_conclusive: Whether an empty result must mean that the partition has no free item (a linearizable read).
                With False, it may also mean that the connected server is behind the others.
        Returns:
            The claim in a list, or an empty list.
        """
        return await self._collect_claims(partial(self._take_from_head, request, session, is_conclusive))

    async def _take_from_head(
        self, request: TakeRequest, session: Session, is_conclusive: bool, claims: list[QueueClaim]
    ) -> None:
        (partition,) = request.partitions
        await self._adopt_unconfirmed_claims(request, session, claims)
        if claims:
            return
        head = await read_head(self._info, partition)
        if head.free:
            await self._take_from_items(list(head.free), request, session, claims)
        if not claims and (is_conclusive or head.free or not head.is_whole):
            await self._take_from_partition(partition, request, session, claims)

    async def _take_from_partitions(self, request: TakeRequest, session: Session, claims: list[QueueClaim]) -> None:
        await self._adopt_unconfirmed_claims(request, session, claims)
        for partition in self._list_partitions_to_read(request):
            await self._take_from_partition(partition, request, session, claims)

    async def _collect_claims(self, take: Callable[[list[QueueClaim]], StepCoroutine[object]]) -> list[QueueClaim]:
        """Call a function that adds claims to a list, and return the list.

        An error is raised only if there are no claims. Otherwise it is logged.
        """
        claims: list[QueueClaim] = []
        try:
            await take(claims)
        except LatchworkError as error:
            if not claims:
                raise
            _log.info("%s: only %d items were taken: %s", self._what, len(claims), error)
        except BaseException:  # a callback failed, or an interrupt: no caller gets the claims
            self.keep_undelivered(claims)
            raise
        return claims

    def keep_undelivered(self, claims: Iterable[QueueClaim]) -> None:
        """Keep claims whose call was canceled or has failed. The next take returns them, or they are released in the
        background.
        """
        self._unconfirmed.add(
            UnconfirmedClaim(claim.item.key, claim.item.claim, claim._holder, None)  # noqa: SLF001
            for claim in claims
        )

    def _list_partitions_to_read(self, request: TakeRequest) -> list[str]:
        """Return the partitions of a request that must be read from the store.

        While this client remembers free items of some of them, those that were empty a moment ago are left out.
        """
        now = self._store.clock.now()
        caches = {partition: self._caches[partition] for partition in request.partitions if partition in self._caches}
        if not any(cache.get_fresh(now) for cache in caches.values()):
            return list(request.partitions)
        return [
            partition
            for partition in request.partitions
            if partition not in caches or now >= caches[partition].is_empty_until
        ]

    async def _take_from_partition(
        self, partition: str, request: TakeRequest, session: Session, claims: list[QueueClaim]
    ) -> None:
        """Take items of one partition.

        Items that were read before are tried first. Then the partition is read, from the first free item if that is
        known, otherwise from the start.
        """
        if len(claims) >= request.limit:
            return
        count_before, now, shard = len(claims), self._store.clock.now(), request.shard(partition)
        if shard.is_sharded:
            cache = self._caches.setdefault(partition, ConsumerCache())
            cache.entries = await self._take_from_items(cache.get_fresh(now), request, session, claims)
            if len(claims) > count_before:
                return
        holder, hint = self._get_holder(partition, session), self._hints.pop(partition, None)
        read = partial(
            PartitionReader,
            self._info,
            partition,
            (request.limit - len(claims)) * shard.count + (READ_AHEAD_ITEMS if shard.is_sharded else 0),
            cleans_index=True,
            own_holder=holder.id if holder.exists else "",
        )
        if hint is not None and now < hint.until:
            pages = read(start=hint.start)
            await self._take_from_pages(pages, request, session, claims, shard)
            if len(claims) >= request.limit or (shard.is_sharded and len(claims) > count_before):
                self._hints[partition] = StartHint(pages.first_free_range or hint.start, hint.until)
                return
        in_order = self._info.is_numbered  # always from the head, and the next put needs the last sort key
        pages = read(keeps_last=in_order)
        await self._take_from_pages(pages, request, session, claims, shard)
        new_hint = None if in_order else pages.build_hint(now + HINT_S)
        if new_hint is not None:
            self._hints[partition] = new_hint
        if shard.is_sharded and pages.is_empty:
            self._caches[partition].is_empty_until = now + EMPTY_CACHE_S

    async def _take_from_pages(
        self,
        pages: PartitionReader,
        request: TakeRequest,
        session: Session,
        claims: list[QueueClaim],
        shard: ConsumerShard,
    ) -> None:
        """Take items of a partition page by page, until there are enough claims or no more pages.

        With a shard, items of that shard are taken first, and what is not needed is kept for the next take.

        Args:
            pages: Reads the partition.
            request: The arguments of the take.
            session: The session of the claims.
            claims: Receives the claims.
            shard: The shard of this consumer.
        """
        count_before = len(claims)
        while len(claims) < request.limit:
            read_at = self._store.clock.now()
            free = await pages.next_page()
            if free is None:
                return
            if not shard.is_sharded:
                await self._take_from_items(free, request, session, claims)
                continue
            cache, now = self._caches[pages.partition], self._store.clock.now()
            to_take, to_leave = cache.split_by_shard(free, shard, now)
            cache.until = now + max(CACHE_S, CACHE_READS * (now - read_at))
            cache.entries = await self._take_from_items(to_take, request, session, claims)
            if len(claims) == count_before and not shard.is_patient:
                await self._take_from_items(_rotate_randomly(to_leave)[:MAX_FOREIGN_ITEMS], request, session, claims)
            if len(claims) > count_before:
                return

    def create_claimed(
        self, partition: str, sort_key: str, item_id: str, value: bytes, session: Session
    ) -> CreateClaimed:
        """Build the writes that put an item and claim it in one transaction.

        Args:
            partition: The partition of the item.
            sort_key: The sort key of the item.
            item_id: The ID of the item.
            value: The value, small enough to be stored in the item.
            session: The session to which the claim is bound.
        """
        key = self._keys.item_key(partition, sort_key, item_id)
        item = QueueItem(item_id, 1, size=len(value), value=value, partition=partition, sort_key=sort_key, key=key)
        holder = self._get_holder(partition, session)
        return CreateClaimed(self._info, self._unconfirmed, item, self._client_info, holder=holder)

    def _get_holder(self, partition: str, session: Session) -> ClaimHolder:
        """Return the claim holder for a partition. Create another one if the session has changed or its key was
        deleted.
        """
        holder = self._holders.get(partition)
        if holder is None or holder.session is not session or holder.is_gone:
            holder = self._holders[partition] = ClaimHolder(self._keys, partition, session)
        return holder

    async def _take_from_items(
        self, free: list[R], request: TakeRequest, session: Session, claims: list[QueueClaim]
    ) -> list[R]:
        """Take items from a list, and return the items that were not tried.

        If other clients take the same items, continue at a random item, so that consumers spread out.

        Args:
            free: The entries or items to take from.
            request: The arguments of the take.
            session: The session of the claims.
            claims: Receives the claims.
        """
        attempts: list[TakeAttempt] = []
        while len(claims) < request.limit:
            left = request.limit - len(claims)
            while free and len(attempts) < min(left, MAX_CLAIMS):
                attempt = await self._prepare_attempt(free.pop(0), request)
                attempts += [] if attempt is None else [attempt]
            if not attempts:
                return []
            batch = choose_first_batch(attempts, left)
            try:
                claims += await self._claim(batch, session)
                attempts = [attempt for attempt in attempts if attempt not in batch]
            except Conflict as error:
                lost, refused = split_by_refusal(batch, error.failed)
                if not (lost or refused or self._has_lost_holder(batch, session, error)):
                    raise
                await self._report_refused(refused, request)
                attempts = [attempt for attempt in attempts if attempt not in lost and attempt not in refused]
                if lost:
                    left_over: list[R] = [attempt.source for attempt in attempts]
                    free, attempts = _rotate_randomly(left_over + free), []
        return [*[attempt.source for attempt in attempts], *free]

    async def _report_refused(self, refused: Iterable[TakeAttempt], request: TakeRequest) -> None:
        """Call the request's ``on_refused`` with each item whose extra checks or writes failed."""
        for attempt in refused:
            if request.on_refused is not None:
                await call_user_function(request.on_refused, attempt.item)

    async def _prepare_attempt(self, source: Entry | QueueItem, request: TakeRequest) -> TakeAttempt | None:
        """Decide whether to take an item, and build the attempt.

        Returns:
            The attempt. None if the item is not accepted, or if it became a dead letter because it is invalid or has no
                attempts left.
        """
        try:
            item = source if isinstance(source, QueueItem) else QueueItem.from_entry(source)
        except BadRecord:
            item = read_for_display(cast("Entry", source))
            await self._dead_letter_for(request, item, item.why)
            return None
        if item.attempts >= self._info.max_attempts:
            why = item.why or f"taken {item.attempts} times, and never acknowledged"
            await self._dead_letter_for(request, item, why)
            return None
        if not request.accept(item):
            return None
        checks, ops = request.extra(item)  # noqa: S610 - no Django here
        return TakeAttempt(source, item, self._keys.build_free_checks(item), tuple(checks), tuple(ops))

    async def _dead_letter_for(self, request: TakeRequest, item: QueueItem, why: str) -> None:
        """Make a dead letter of an item that a take has found, and call the request's ``on_dead_letter``."""
        if (
            await self.move_to_dead_letters(item, why, request.extra_for_dead_letter)
            and request.on_dead_letter is not None
        ):
            await call_user_function(request.on_dead_letter, item)

    async def move_to_dead_letters(self, item: QueueItem, why: str, extra: Extra) -> bool:
        """Make a dead letter of an item that no client has claimed.

        Args:
            item: The item.
            why: The reason, stored in the dead letter.
            extra: Returns further checks and writes for the transaction.
        Returns:
            False if the item has changed or a check failed.
        """
        dead_item = item.with_reason(why)
        checks, ops = await call_user_function(extra, dead_item)
        dead_letter_id = item.id
        while True:
            dead = build_dead_letter_put(self._keys, dead_item, dead_letter_id)
            all_checks = [*self._keys.build_free_checks(item), *checks]
            try:
                await ask(self._store.commit, all_checks, [Delete(item.key), dead, *ops])
            except Conflict as error:
                if not any(getattr(part, "key", None) == dead.key for part in error.failed):
                    _log.info("%s: item %s could not be made a dead letter yet: %s", self._what, item.path, error)
                    return False
                dead_letter_id = generate_dead_letter_id(item.id)
            else:
                _log.warning("%s: item %s is now a dead letter: %s", self._what, item.path, why)
                return True

    async def _claim(self, batch: Sequence[TakeAttempt], session: Session) -> list[QueueClaim]:
        """Claim the items of these attempts in one transaction, all or none. Return the claims."""
        partitions = dict.fromkeys(attempt.item.partition for attempt in batch)
        holders = {partition: self._get_holder(partition, session) for partition in partitions}
        claim_ids = {partition: holder.generate_claim_id() for partition, holder in holders.items()}
        claimed = [attempt.item.with_claim(claim_ids[attempt.item.partition]) for attempt in batch]
        checks: dict[Check, None] = {Exists(holder.key): None for holder in holders.values() if holder.exists}
        ops: list[Op] = [Put(item.key, item.to_bytes()) for item in claimed]
        ops += [Put(holder.key, self._client_info, session) for holder in holders.values() if not holder.exists]
        for attempt in batch:
            checks.update(dict.fromkeys((*attempt.free, *attempt.checks)))
            ops += attempt.ops
        try:
            written = (await ask(self._store.commit, list(checks), ops)).entries
        except BaseException as error:
            if isinstance(error, OutcomeUnknown) or not isinstance(error, Exception):  # or interrupted
                self._unconfirmed.add(
                    UnconfirmedClaim(item.key, item.claim, holders[item.partition], attempt.item)
                    for attempt, item in zip(batch, claimed, strict=True)
                )
            raise
        for holder in holders.values():
            holder.exists = True
        return await self._read_large_values(
            [
                QueueClaim(self._info, item.with_entry(entry), item.value, entry.token, holder=holders[item.partition])
                for item, entry in zip(claimed, written, strict=False)  # the items come first
            ]
        )

    def _has_lost_holder(self, batch: Sequence[TakeAttempt], session: Session, error: Conflict) -> bool:
        """Return whether the transaction of a take failed because the session-bound key of our claims was deleted.

        The next attempt creates another such key.
        """
        failed_keys = {getattr(part, "key", None) for part in error.failed}
        holders = {self._get_holder(attempt.item.partition, session) for attempt in batch}
        lost = [holder for holder in holders if holder.key in failed_keys]
        for holder in lost:
            holder.is_gone = True
        return bool(lost)

    async def _read_large_values(self, claims: list[QueueClaim]) -> list[QueueClaim]:
        """Read the large values of claimed items, which are stored separately. Return the claims.

        An item whose value was deleted becomes a dead letter, and its claim is left out.
        """
        if not any(claim.item.data_id for claim in claims):
            return claims
        try:
            return await self._fill_large_values(claims)
        except BaseException:
            self.keep_undelivered(claims)
            raise

    async def _fill_large_values(self, claims: Sequence[QueueClaim]) -> list[QueueClaim]:
        """Read the large values of claims into the claims. Return those whose values exist."""
        complete = []
        for claim in claims:
            data_id = claim.item.data_id
            data = await ask(self._store.get, self._keys.data_key(data_id)) if data_id else None
            if data is not None:
                claim.value = data.value
            if data_id and data is None:
                await coroutine_of(claim.move_to_dead_letters)("its value was deleted by another program")
            else:
                complete.append(claim)
        return complete

    async def _adopt_unconfirmed_claims(self, request: TakeRequest, session: Session, claims: list[QueueClaim]) -> None:
        """Add the claims of earlier transactions with lost answers, if they were committed and the request accepts the
        items.

        Args:
            request: The arguments of the take.
            session: The session of the claims.
            claims: Receives the claims.
        """
        prefixes = {self._keys.items_prefix(partition) for partition in request.partitions}
        for unconfirmed in self._unconfirmed.list_for_session(session):
            if len(claims) >= request.limit:
                return
            if unconfirmed.item_key.rpartition("/")[0].rpartition("/")[0] not in prefixes:
                continue
            entry = await self._unconfirmed.resolve(unconfirmed)
            if entry is None:
                continue
            item = QueueItem.from_entry(entry)
            claim = QueueClaim(self._info, item, item.value, entry.token, holder=unconfirmed.holder)
            is_wanted = False
            try:
                is_wanted = request.accept(item)
            finally:
                if not is_wanted:
                    self.keep_undelivered([claim])
            if is_wanted:
                claims += await self._read_large_values([claim])
