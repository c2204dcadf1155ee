"""Distribution of tasks among the workers of the plans below one name.

Keys:  <name>/workers/<session>   empty; bound to the session

A worker prefers the tasks of its own shard. This is only a preference: two workers with the same shard cost each other
one request, and nothing else.
"""

from __future__ import annotations

from latchwork.errors import LatchworkError
from latchwork.plans.keys import Keys
from latchwork.primitives import TakerShard
from latchwork.store import Mirror, Session, Store


class PeerSharding:
    """Divides the tasks into shards, one per worker, and knows that of this worker. Thread-safe.

    Args:
        keys: Keys of the plans.
        workers: Mirror of all workers.
        session: Session of this worker.
    """

    def __init__(self, keys: Keys, workers: Mirror, session: Session) -> None:
        self._key = f"{keys.workers}/{session.id}"
        self._workers = workers
        self._session = session

    def announce(self, store: Store) -> None:
        """Write the key by which other workers know of this worker. It disappears with the session of this worker."""
        store.put(self._key, b"", session=self._session)

    def shard(self) -> TakerShard:
        """Return this worker's shard of the tasks. It is empty while the mirror does not contain this worker."""
        try:
            known = sorted(self._workers.snapshot())
        except LatchworkError:
            return TakerShard()
        return TakerShard(known.index(self._key), len(known)) if self._key in known else TakerShard()
