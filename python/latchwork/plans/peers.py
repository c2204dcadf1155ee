"""Distribution of tasks among the workers of the plans below one name.

Keys:  <name>/workers/<session>   empty; bound to the session

A share is only a preference. Two workers with the same share cost each other one request, and nothing else.
"""

from __future__ import annotations

from latchwork.errors import LatchworkError
from latchwork.plans.keys import Keys
from latchwork.primitives import Share
from latchwork.store import Mirror, Session, Store


class PeerSharding:
    """Knows which share of the tasks this worker looks at first. Thread-safe.

    Args:
        keys: Keys of the plans.
        workers: Mirror of all workers.
        session: Session of this worker.
    """

    def __init__(self, keys: Keys, workers: Mirror, session: Session) -> None:
        self._key = f"{keys.workers}/{session.id}"
        self._workers = workers
        self._session = session

    def join(self, store: Store) -> None:
        """Announce this worker for the time of its session. An idle worker writes nothing else."""
        store.put(self._key, b"", session=self._session)

    def share(self) -> Share:
        """Return this worker's share, or an empty one while the mirror does not contain this worker."""
        try:
            known = sorted(self._workers.snapshot())
        except LatchworkError:
            return Share()
        return Share(known.index(self._key), len(known)) if self._key in known else Share()
