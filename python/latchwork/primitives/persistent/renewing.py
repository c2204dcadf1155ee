"""How an owner is created and renewed: by itself, or by the transactions that renew a session, too.

An owner with a session has a sign, which is bound to that session: when it is gone others know that the owner is over,
also those that come to look later, and need not see it silent for a TTL of their own. docs/design/0018.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future

from msgspec.structs import replace

from latchwork.backends.futures import then
from latchwork.errors import Conflict, LatchworkError
from latchwork.primitives.persistent.held import LockOwner
from latchwork.primitives.persistent.protocol import OwnerRecord
from latchwork.primitives.persistent.table import LockTable
from latchwork.store.session import Session
from latchwork.types import Exists

_log = logging.getLogger(__name__)

#: Gives the session to share renewals with, None when there is none at the moment.
SessionOfTheMoment = Callable[[], Session | None]


class Renewals:
    """Creates and renews the owners of one keeper. Safe to share between threads."""

    def __init__(self, table: LockTable, record: OwnerRecord, session: SessionOfTheMoment | None) -> None:
        self._table = table
        self._record = record
        self._session = session

    def session(self) -> Session | None:
        """The session for a new owner: one that lasts no shorter than its locks, or its end would cut them short."""
        session = self._session() if self._session is not None else None
        if session is None or session.ttl_s < self._record.ttl_s or session.remaining_s() <= 0.0:
            return None
        return session

    async def create(self, owner: LockOwner) -> None:
        """Create O, and its sign."""
        await self._table.create_owner(owner.id, self._of(owner.session), owner.session)

    def renew(self, owner: LockOwner) -> Future[float]:
        """Rewrite O: the future of the local time of the send. Once its session has ended it goes on without one."""
        session = owner.session
        if session is None or owner.is_signed:
            return self._table.renew(owner.id, self._of(session), session)

        def parted(sent_at: float) -> float:
            owner.without_session()
            return sent_at

        return then(self._table.renew_unsigned(owner.id, self._record), parted)

    def is_taken_over(self, owner: LockOwner, error: BaseException) -> bool:
        """Whether a renewal failed because O is gone. If only its sign is, it is renewed without one at once."""
        if not isinstance(error, Conflict):
            return False
        if owner.session is None or Exists(self._table.owner_key(owner.id)) in error.failed:
            return True
        owner.lose_sign()
        return False

    async def part(self, owner: LockOwner | None) -> None:
        """Leave an owner that holds something to run out by its own TTL, however soon its session ends."""
        if owner is None or owner.session is None or not owner.held or owner.is_over:
            return
        try:
            await self._table.part_owner(owner.id, self._record)
        except LatchworkError as error:
            _log.warning("lock owner %s may end with its session, not by its TTL: %s", owner.id, error)

    def _of(self, session: Session | None) -> OwnerRecord:
        return self._record if session is None else replace(self._record, session=session.id)
