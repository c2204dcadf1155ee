"""An item that is put and taken in one transaction of the caller's: nobody sees it free in between.

The claim is as any other: when its taker dies, the item is there, free, with one attempt counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from latchwork.primitives.fair.tickets import write_body
from latchwork.primitives.queue.claims import Holding, QueueClaim
from latchwork.primitives.queue.in_doubt import Doubt, Doubts
from latchwork.primitives.queue.items import QueueItem, new_number, sort_key_op
from latchwork.store.session import Session
from latchwork.types import Committed, Create, Op


class CreateClaimed:
    """An item that is ours from the start. Do ``taken`` or ``doubtful`` once its transaction may have been written.

    Attributes:
        ops: the writes that put and take it.
    """

    def __init__(
        self, held: Holding, doubts: Doubts, item: QueueItem, about: Mapping[str, object], *, session: Session
    ) -> None:
        self._held = held
        self._doubts = doubts
        self._item = item
        self._session = session
        self._claim_key = held.names.claim_of(item)
        self._nonce = new_number()
        self.ops: tuple[Op, ...] = (
            sort_key_op(held.names, item.partition, item.sort_key),
            Create(item.key, item.to_bytes()),
            Create(self._claim_key, write_body({**about, "nonce": self._nonce}), session),
        )

    def __repr__(self) -> str:
        return f"<CreateClaimed {self._item.path!r}>"

    def taken(self, done: Committed) -> QueueClaim | None:
        """The claim, out of what was committed; None if it is not there. Call it once."""
        found = {entry.key: entry for entry in done.entries if entry.key in (self._item.key, self._claim_key)}
        item, claim = found.get(self._item.key), found.get(self._claim_key)
        if item is None or claim is None:
            return None
        return QueueClaim(self._held, self._item.at(item), self._item.value, claim, session=self._session)

    def doubtful(self) -> None:
        """It landed, or it did not and never will: the next take has it, or a thread gives it back after a second."""
        self._doubts.note(Doubt(self._claim_key, self._item.key, self._nonce, self._session, None))
