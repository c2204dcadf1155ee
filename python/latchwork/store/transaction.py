"""The object for the reads and writes of one transaction attempt. ``Store.transact`` repeats the attempts."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from latchwork.errors import KeyExists
from latchwork.store.calls import Entries
from latchwork.store.keys import validate_key, validate_key_for_read, validate_prefix_for_read
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking, coroutine_of
from latchwork.types import Absent, At, Check, Create, Delete, Entry, Op, Put

ChecksAndOps = tuple[list[Check], list[Op]]


class Tx:
    """The object through which a transaction function reads and writes. It is valid only during the call, in one
    thread.

    Reads are cached: reading the same key or list again returns the same result, and the commit checks each key that
    was read. Later reads see the transaction's own writes. Such entries have the version None and the token 0.
    """

    def __init__(
        self, get: Callable[[str], Entry | None], list_keys: Callable[..., Entries], guard: str | None = None
    ) -> None:
        self._get_entry = get
        self._list_entries = list_keys
        self._guard = guard
        self._read: dict[str, Entry | None] = {}
        self._listed: dict[tuple[str, bool], Entries] = {}
        self._written: dict[str, Op] = {}

    async def read_guard(self) -> None:
        """Read the guard key before any other key."""
        if self._guard is not None:
            await self._fetch(validate_key(self._guard))

    @blocking
    async def get(self, key: str) -> Entry | None:
        """Return the entry of a key, or None if it does not exist.

        The read is linearizable, and the commit checks that the key has not changed since.
        """
        op = self._written.get(validate_key_for_read(key))
        if op is None:
            return await self._fetch(key)
        return self._pending(op)

    @blocking
    async def list(self, prefix: str, *, recursive: bool = False) -> Entries:
        """Return the entries below a prefix, sorted by key, including those that this transaction writes.

        Consistent among transactions with the same guard, but not with other writes or with keys that expire.

        Raises:
            ValueError: The transaction has no guard, so an added key would go unnoticed.
        """
        if self._guard is None:
            msg = f"tx.list({prefix!r}) needs transact(..., guard=key): without it an added key would go unnoticed"
            raise ValueError(msg)
        asked = (prefix, recursive)
        if asked not in self._listed:
            self._listed[asked] = await ask(self._list_entries, prefix, recursive=recursive)
        found = {entry.key: entry for entry in self._listed[asked]}
        below = f"{validate_prefix_for_read(prefix)}/" if prefix else ""
        for op in self._written.values():
            if op.key.startswith(below) and (recursive or "/" not in op.key[len(below) :]):
                found.pop(op.key, None)
                pending = self._pending(op)
                if pending is not None:
                    found[op.key] = pending
        return [found[key] for key in sorted(found)]

    @blocking
    async def put(self, key: str, value: bytes, *, session: Session | None = None) -> None:
        """Create or overwrite a key when the transaction commits."""
        before = self._written.get(validate_key(key))
        op: Op = Put(key, value, session)
        if isinstance(before, Delete) and session is None:
            await self._refuse_unbinding(key)
        if isinstance(before, Create):
            op = replace(before, value=value, session=session or before.session)
        self._written[key] = op

    @blocking
    async def create(self, key: str, value: bytes, *, session: Session | None = None) -> None:
        """Create a key when the transaction commits.

        Raises:
            KeyExists: The key exists.
        """
        if await coroutine_of(self.get)(key) is not None:
            raise KeyExists(f"key {key!r} already exists; read it, or use put to overwrite it")
        if isinstance(self._written.get(key), Delete):
            await coroutine_of(self.put)(key, value, session=session)
        else:
            self._written[key] = Create(key, value, session)

    def delete(self, key: str) -> None:
        """Delete a key when the transaction commits. A key that does not exist is ignored."""
        if isinstance(self._written.get(validate_key(key)), Create):
            del self._written[key]  # its absence is still checked
        else:
            self._written[key] = Delete(key)

    def build_checks_and_ops(self) -> ChecksAndOps:
        """Return the checks and the operations to commit. Both are empty if a commit is not necessary.

        A transaction that only reads one key needs no commit, because one read is consistent by itself.
        """
        if not self._written and len(self._read) < 2 and not self._listed:
            return [], []
        ops = list(self._written.values())
        if ops and self._guard is not None and self._guard not in self._written:
            before = self._read[self._guard]
            ops.append(Put(self._guard, before.value if before is not None else b""))
        created = {op.key for op in ops if isinstance(op, Create)}
        checks: list[Check] = []
        for key, entry in self._read.items():
            if entry is not None:
                checks.append(At(entry))
            elif key not in created:  # Create checks it by itself
                checks.append(Absent(key))
        return checks, ops

    async def _refuse_unbinding(self, key: str) -> None:
        """Raise an error if a session-bound key was deleted in this transaction and is put again.

        Both together would be stored as one put, which would leave the key bound to the session.
        """
        before = await self._fetch(key)
        if before is not None and before.owner is not None:
            msg = f"key {key!r} is bound to session {before.owner}: delete it in one transaction, write it in the next"
            raise ValueError(msg)

    async def _fetch(self, key: str) -> Entry | None:
        if key not in self._read:
            self._read[key] = await ask(self._get_entry, key)
        return self._read[key]

    def _pending(self, op: Op) -> Entry | None:
        if isinstance(op, Delete):
            return None
        return Entry(op.key, op.value, None, 0, 0, op.session.id if op.session is not None else None)
