"""The workers of the plans below one name know each other, so that they do not all want the same items.

Keys:  <name>/workers/<session>   empty; dies with the session

A share is a preference: two that think they have the same one lose a round trip, and nothing else.
"""

from __future__ import annotations

from latchwork.errors import LatchworkError
from latchwork.plans.keys import Keys
from latchwork.primitives import Share
from latchwork.store import Mirror, Session, Store


class PeerSharding:
    """Which of the workers one is. Safe to share between threads.

    Args:
        keys: the plans' keys.
        workers: a mirror of all workers.
        session: ours.
    """

    def __init__(self, keys: Keys, workers: Mirror, session: Session) -> None:
        self._key = f"{keys.workers}/{session.id}"
        self._workers = workers
        self._session = session

    def join(self, store: Store) -> None:
        """Say that we are there, as long as the session lasts. The one write of a worker that has nothing to do."""
        store.put(self._key, b"", session=self._session)

    def share(self) -> Share:
        """Ours; none while the others do not know us, or the mirror is closed."""
        try:
            known = sorted(self._workers.snapshot())
        except LatchworkError:
            return Share()
        return Share(known.index(self._key), len(known)) if self._key in known else Share()
