"""Values that are too large for a record, in chunks beside it.

Keys:   <name>/<owner>/<id>/<n:04>     chunks of up to 900,000 bytes
Order:  chunks first, then the record that names them, in a transaction of its writer; they are deleted with it.
Owner:  somebody whose end others can see: the id of a session-bound key. What it wrote and never named is swept then;
        what nobody will name is deleted before, in the background, until that works.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from latchwork._base.decoding import Decoder, encode
from latchwork.errors import BadRecord, Closed, ForkedProcess, InvalidKey, LatchworkError, PermissionDenied
from latchwork.store import Backoff
from latchwork.store.keys import validate_name
from latchwork.store.steps import ask, driven
from latchwork.store.store import Store
from latchwork.tasks.errors import PayloadTooLarge
from latchwork.tasks.payloads.codec import MAX_PAYLOAD_BYTES
from latchwork.types import Delete, Op
from latchwork.words import short

_log = logging.getLogger(__name__)

CHUNK_BYTES = 900_000
#: So many chunks are asked for in one call.
_TOGETHER = 4
#: Seconds after which what was deleted is deleted once more: a write whose answer was lost may land so late.
LATE_S = 2.0
#: Seconds of the longest pause before a deletion that failed is tried again.
_LONGEST_S = 5.0
#: No other try mends these.
_FATAL = (Closed, ForkedProcess, InvalidKey, PermissionDenied)
#: What a digest shows: enough to tell damage.
_DIGEST = 32


class BlobRef(Struct, frozen=True):
    """Where a large value is, as a record has it.

    Attributes:
        owner: whose it is.
        id: unique.
        size: its bytes.
        digest: the beginning of its SHA-256, in hexadecimal.
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
                raise ValueError(f"a large value has the address {short(part)}, which is none: {error}") from None

    @property
    def chunks(self) -> int:
        """How many chunks it has."""
        return max(1, -(-self.size // CHUNK_BYTES))

    def to_bytes(self) -> bytes:
        """Return it as a record of its own."""
        return encode(self)

    @classmethod
    def of(cls, value: bytes) -> BlobRef:
        """Return the reference in a value.

        Raises:
            BadRecord: There is none, or it is larger than any payload.
        """
        return _REF.decode(value)


_REF: Decoder[BlobRef] = Decoder(BlobRef, "a reference to a large value")


class Blobs:
    """Large values below one name. Safe to share between threads and processes. Construction does no I/O.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which they are.
        max_bytes: a larger value is refused, written or read.
    """

    def __init__(self, store: Store, name: str, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        if type(max_bytes) is not int or max_bytes < 1:
            raise ValueError(f"max_bytes must be a whole number from 1, not {max_bytes!r}")
        self.name = validate_name(name)
        self.max_bytes = max_bytes
        self._store = store

    @driven
    async def write(self, owner: str, data: bytes) -> BlobRef:
        """Write a value, before the record that names it. Of one that fails nothing stays, once the store is there.

        Args:
            owner: one segment of a key: whoever is to name it.
            data: up to ``max_bytes``.
        Raises:
            PayloadTooLarge: it is longer.
            Unavailable, OutcomeUnknown, QuotaExceeded: not all of it is written.
        """
        if len(data) > self.max_bytes:
            raise PayloadTooLarge(
                f"a value has {len(data):,} bytes, and at most {self.max_bytes:,} are stored; "
                "put it elsewhere, and pass its address"
            )
        ref = BlobRef(_segment(owner), uuid.uuid4().hex, len(data), _digest(data))
        try:
            for number, key in enumerate(self._keys(ref)):
                await ask(self._store.put, key, data[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES])
        except BaseException:
            self.forget(ref)
            raise
        return ref

    @driven
    async def read(self, ref: BlobRef) -> bytes:
        """A value, whole and undamaged.

        Raises:
            BadRecord: it is not there any more, or is not what was written.
            PayloadTooLarge: it is longer than ``max_bytes``.
            Unavailable: the server could not be reached.
        """
        if ref.size > self.max_bytes:
            raise PayloadTooLarge(f"a value has {ref.size:,} bytes, and at most {self.max_bytes:,} are read here")
        keys, parts = self._keys(ref), []
        for first in range(0, len(keys), _TOGETHER):
            for entry in await ask(self._store.get_many, keys[first : first + _TOGETHER]):
                if entry is None:
                    raise BadRecord(
                        f"{self._path(ref)} has lost a part: its record was deleted, or somebody deleted it"
                    )
                parts.append(entry.value)
        data = b"".join(parts)
        if len(data) != ref.size or _digest(data) != ref.digest:
            raise BadRecord(f"{self._path(ref)} is not what was written: somebody else wrote to its keys")
        return data

    def delete_ops(self, ref: BlobRef) -> list[Op]:
        """The writes that delete it, for the transaction that deletes its record: one for each 900,000 bytes."""
        return [Delete(key) for key in self._keys(ref)]

    @driven
    async def delete(self, ref: BlobRef) -> None:
        """Delete it at once, in a call of its own."""
        await ask(self._store.delete_tree, self._path(ref))

    def forget(self, ref: BlobRef) -> None:
        """Delete in the background what nobody will name, until that works or the store is closed. Does not block."""
        self._store.cleanup.add(partial(self._delete_unnamed, ref, Backoff(longest_s=_LONGEST_S)))

    @driven
    async def sweep(self, living: Callable[[], Iterable[str]]) -> list[str]:
        """Delete all that owners who are gone have left. By anybody, as often as one likes.

        Args:
            living: the owners that live; called once, and asks the store. An owner that was seen here before, and is
                not among them, is gone for good: owners are never used again.
        Returns:
            The owners that were gone, sorted.
        """
        seen = await ask(self._store.children, self.name)
        alive = set(living()) if seen else set()
        gone = sorted(set(seen) - alive)
        for owner in gone:
            await ask(self._store.delete_tree, f"{self.name}/{owner}")
        return gone

    def _path(self, ref: BlobRef) -> str:
        return f"{self.name}/{ref.owner}/{ref.id}"

    def _keys(self, ref: BlobRef) -> list[str]:
        return [f"{self._path(ref)}/{number:04}" for number in range(ref.chunks)]

    async def _delete_unnamed(self, ref: BlobRef, backoff: Backoff, *, is_last: bool = False) -> float | None:
        """Try once to delete it; a ``CleanupJob``. Then once more: a write of unknown outcome may have landed since."""
        try:
            await ask(self._store.delete_tree, self._path(ref))
        except _FATAL as error:
            _log.info("%s is left until its owner is swept: %s", self._path(ref), error)
        except LatchworkError as error:
            _log.info("%s is not deleted yet: %s", self._path(ref), error)
            return backoff.next_s()
        else:
            if not is_last:
                self._store.cleanup.add(partial(self._delete_unnamed, ref, backoff, is_last=True), LATE_S)
        return None


def _segment(name: str) -> str:
    validate_name(name)
    if "/" in name:
        raise LatchworkError(f"the owner {name!r} of a large value must be one segment of a key, without '/'")
    return name


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST]
