"""A session of the embedded store. The store's session thread drives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from latchwork.backends.embedded.backend import EmbeddedBackend

#: Shorter sessions would end when a busy machine delays their owner a little.
LEAST_TTL_S = 0.25
_RENEWALS_PER_TTL = 4


class EmbeddedSession:
    """One row of the sessions table. Safe to share between threads."""

    confirm_gap_s = 0.0  # the file itself confirms: each renewal counts

    def __init__(
        self,
        backend: EmbeddedBackend,
        session_id: str,
        *,
        ttl_s: float,
        opened_at: float,
        token: int,
        on_gone: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._on_gone: Callable[[], None] | None = on_gone
        self.id = session_id
        self.ttl_s = ttl_s
        self.opened_at = opened_at
        self.token = token
        self.renew_every_s = ttl_s / _RENEWALS_PER_TTL

    def renew(self) -> Future[float]:
        """Keep it for another TTL; waits for the file's lock for a part of the TTL at most.

        The future gives the time at which the renewal began. ``SessionLost``: it has ended, and for good.
        """
        return self._backend.renew_session(self)

    def close(self) -> Future[None]:
        """End it now; what is asked of it from here on fails. Twice is fine."""
        return self._backend.end_session(self)

    def tell_gone(self) -> None:
        """Call ``on_gone``, once."""
        told, self._on_gone = self._on_gone, None
        if told is not None:
            told()
