"""Distribution of tasks among the workers of the plans below one name.

Keys:  <name>/workers/<session>   empty; bound to the session

A worker prefers the tasks of its own shard. This is only a preference: two workers with the same shard cost each other
one request, and nothing else.
"""

from __future__ import annotations

from latchwork.errors import LatchworkError
from latchwork.plans.keys import Keys
from latchwork.primitives import ConsumerShard
from latchwork.store import Mirror, Session, Store


class WorkerSharding:
    """Divides the tasks into shards, one per worker, so that workers rarely compete for the same task. Thread-safe.

    Args:
        keys: Keys of the plans.
        workers: Mirror of the keys of all workers: a local copy that follows the store.
        session: Session of this worker.
    """

    def __init__(self, keys: Keys, workers: Mirror, session: Session) -> None:
        self._key = f"{keys.workers}/{session.id}"
        self._workers = workers
        self._session = session

    def register(self, store: Store) -> None:
        """Write the key that tells other workers about this worker. It disappears when the session of this worker
        ends.
        """
        store.put(self._key, b"", session=self._session)

    def get_shard(self) -> ConsumerShard:
        """Return this worker's shard of the tasks, determined by its rank among the workers of these plans.

        Returns:
            A shard that covers nothing if the mirror does not contain this worker yet.
        """
        try:
            known = sorted(self._workers.snapshot())
        except LatchworkError:
            return ConsumerShard()
        return ConsumerShard(known.index(self._key), len(known)) if self._key in known else ConsumerShard()
