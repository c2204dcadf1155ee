"""Storage of values that are too large for one record. Each value is split into chunks.

Keys:   <name>/<owner>/<id>/<n:04>     chunks of up to 900,000 bytes
Order:  chunks first, then the record that refers to them, in a transaction of the writer. Both are deleted together.
Owner:  the ID of a session-bound key, so that other processes can see when the owner is gone. Chunks that no record
        refers to are deleted in the background, with retries, or by ``sweep`` once the owner is gone.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated

from msgspec import Meta

from latchwork._base.decoding import Decoder, Record
from latchwork._base.text import short
from latchwork.errors import BadRecord, Closed, ForkedProcess, InvalidKey, LatchworkError, PermissionDenied
from latchwork.store import Backoff
from latchwork.store.keys import validate_name
from latchwork.store.steps import ask, blocking
from latchwork.store.store import Store
from latchwork.tasks.errors import PayloadTooLarge
from latchwork.tasks.payloads.codec import MAX_PAYLOAD_BYTES
from latchwork.types import Delete, Op

_log = logging.getLogger(__name__)

CHUNK_BYTES = 900_000
#: Number of chunks read in one call.
_TOGETHER = 4
#: Seconds until a deletion is repeated: a write whose response was lost may still be applied until then.
LATE_S = 2.0
#: Maximum backoff between attempts to delete, in seconds.
_LONGEST_S = 5.0
#: Permanent errors: do not retry.
_FATAL = (Closed, ForkedProcess, InvalidKey, PermissionDenied)
#: Hexadecimal digits of a digest that are stored: enough to detect damage.
_DIGEST = 32


class BlobRef(Record, frozen=True):
    """A reference to a large value, as stored in the record that uses the value.

    Attributes:
        owner: Name of the owner. All values of an owner are deleted together when the owner is gone.
        id: Unique ID of the value.
        size: Size in bytes.
        digest: The first half of the SHA-256 of the value, in hexadecimal.
    """

    owner: str
    id: str
    size: Annotated[int, Meta(ge=0, le=MAX_PAYLOAD_BYTES)]
    digest: str

    def __post_init__(self) -> None:
        for part in (self.owner, self.id):
            try:
                _segment(part)
            except LatchworkError as error:
                raise ValueError(f"a large value has the address {short(part)}, which is invalid: {error}") from None

    @property
    def chunk_count(self) -> int:
        """The number of keys over which the value is spread."""
        return max(1, -(-self.size // CHUNK_BYTES))

    @classmethod
    def from_bytes(cls, value: bytes) -> BlobRef:
        """Decode a stored reference.

        Raises:
            BadRecord: The bytes are not a reference, or the size is above the maximum of a payload.
        """
        return _REF.decode(value)


_REF: Decoder[BlobRef] = Decoder(BlobRef, "a reference to a large value")


class Blobs:
    """Large values below one name in a store, each split into chunks. Thread-safe, and safe to use from many processes.

    Construction does no I/O.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key below which the values are stored.
        max_bytes: The largest value that can be written or read.
    """

    def __init__(self, store: Store, name: str, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        if type(max_bytes) is not int or max_bytes < 1:
            raise ValueError(f"max_bytes must be a whole number from 1, not {max_bytes!r}")
        self.name = validate_name(name)
        self.max_bytes = max_bytes
        self._store = store

    @blocking
    async def write(self, owner: str, data: bytes) -> BlobRef:
        """Write a large value, and return a reference to it. The caller then writes the record that contains the
        reference.

        If the write fails, its chunks are deleted in the background.

        Args:
            owner: Owner of the value; part of its keys, without ``/``.
            data: The value, up to ``max_bytes`` long.
        Raises:
            PayloadTooLarge: The value is longer than ``max_bytes``.
            Unavailable, OutcomeUnknown, QuotaExceeded: The value was not written completely.
        """
        if len(data) > self.max_bytes:
            raise PayloadTooLarge(
                f"a value has {len(data):,} bytes, and at most {self.max_bytes:,} are stored; "
                "store it elsewhere and pass its address"
            )
        ref = BlobRef(_segment(owner), uuid.uuid4().hex, len(data), _compute_digest(data))
        try:
            for number, key in enumerate(self._list_keys(ref)):
                await ask(self._store.put, key, data[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES])
        except BaseException:
            self.delete_soon(ref)
            raise
        return ref

    @blocking
    async def read(self, ref: BlobRef) -> bytes:
        """Read a large value and check its size and digest.

        Raises:
            BadRecord: The value was deleted, or differs from what was written.
            PayloadTooLarge: The value is longer than ``max_bytes``.
            Unavailable: The server could not be reached.
        """
        if ref.size > self.max_bytes:
            raise PayloadTooLarge(f"a value has {ref.size:,} bytes, and at most {self.max_bytes:,} are read here")
        keys, parts = self._list_keys(ref), []
        for first in range(0, len(keys), _TOGETHER):
            for entry in await ask(self._store.get_many, keys[first : first + _TOGETHER]):
                if entry is None:
                    raise BadRecord(f"{self._build_path(ref)} has lost a part: its record or the part was deleted")
                parts.append(entry.value)
        data = b"".join(parts)
        if len(data) != ref.size or _compute_digest(data) != ref.digest:
            raise BadRecord(
                f"{self._build_path(ref)} is not the value that was written: another program wrote to its keys"
            )
        return data

    def delete_ops(self, ref: BlobRef) -> list[Op]:
        """Return the writes that delete a value, one per chunk. Add them to the transaction that deletes its record.

        Args:
            ref: Reference to the value.
        """
        return [Delete(key) for key in self._list_keys(ref)]

    @blocking
    async def delete(self, ref: BlobRef) -> None:
        """Delete a value now. To delete its record in the same transaction, use ``delete_ops``."""
        await ask(self._store.delete_tree, self._build_path(ref))

    def delete_soon(self, ref: BlobRef) -> None:
        """Delete a value in the background, with retries until the store closes. No record may refer to it. Never
        blocks.
        """
        self._store.cleanup.add(partial(self._try_delete_unreferenced, ref, Backoff(longest_s=_LONGEST_S)))

    @blocking
    async def sweep(self, list_owners: Callable[[], Iterable[str]]) -> list[str]:
        """Delete the values of all owners that no longer exist. Idempotent. Several processes may do this at once.

        Args:
            list_owners: Returns the owners that still exist. Called at most once, and may read the store. Owner IDs are
                never reused, so an owner that it does not return is gone permanently.
        Returns:
            The owners whose values were deleted, sorted.
        """
        seen = await ask(self._store.children, self.name)
        alive = set(list_owners()) if seen else set()
        gone = sorted(set(seen) - alive)
        for owner in gone:
            await ask(self._store.delete_tree, f"{self.name}/{owner}")
        return gone

    def _build_path(self, ref: BlobRef) -> str:
        return f"{self.name}/{ref.owner}/{ref.id}"

    def _list_keys(self, ref: BlobRef) -> list[str]:
        return [f"{self._build_path(ref)}/{number:04}" for number in range(ref.chunk_count)]

    async def _try_delete_unreferenced(self, ref: BlobRef, backoff: Backoff, *, is_last: bool = False) -> float | None:
        """Try once to delete a value to which no record refers. Runs in the cleanup thread of the store.

        A successful deletion is repeated once after ``LATE_S`` seconds, because a write whose answer was lost may be
        applied late.

        Args:
            ref: Reference to the value.
            backoff: Pauses between attempts.
            is_last: Whether this is the repetition.
        Returns:
            Seconds until the next attempt; None if no further attempt is needed.
        """
        try:
            await ask(self._store.delete_tree, self._build_path(ref))
        except _FATAL as error:
            _log.info("%s is left until its owner is swept: %s", self._build_path(ref), error)
        except LatchworkError as error:
            _log.info("%s is not deleted yet: %s", self._build_path(ref), error)
            return backoff.next_s()
        else:
            if not is_last:
                self._store.cleanup.add(partial(self._try_delete_unreferenced, ref, backoff, is_last=True), LATE_S)
        return None


def _segment(name: str) -> str:
    validate_name(name)
    if "/" in name:
        raise LatchworkError(f"the owner {name!r} of a large value must be one segment of a key, without '/'")
    return name


def _compute_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST]
