"""From a URL to a store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial

from latchwork.backends.url import open_backend, parse_url
from latchwork.checks import is_number
from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.errors import InvalidURL
from latchwork.store.core import Core
from latchwork.store.observe.calls import StoreObserver
from latchwork.store.observers import Observers
from latchwork.store.owner import Origin, origin
from latchwork.store.store import Store

URL_VARIABLE = "LATCHWORK_URL"


def connect(
    url: str | None = None,
    *,
    clock: Clock | None = None,
    observers: Iterable[StoreObserver] = (),
    **overrides: object,
) -> Store:
    """Open a store.

    Keep the store, or something made with it, and close it. A store that is dropped emits a ``ResourceWarning`` and is
    closed, and its sessions, watches and mirrors with it.

    Args:
        url: ``etcd://``, ``zk://``, ``sqlite://`` or ``memory://``; None reads the environment's ``LATCHWORK_URL``.
        clock: the clock that sessions and waits use; None for the machine's.
        observers: told of each call and each session: ``StoreMetrics()``, your own.
        overrides: options of the URL by name, which win over those in it (``session_ttl_s=5``, ``root="app"``).
    Returns:
        A store, connected.
    Raises:
        InvalidURL: an unknown scheme or option, or a malformed host; the message lists what is known.
        BackendNotInstalled: the client library is missing; the message has the install line.
        ConnectFailed: no server answered within ``connect_timeout_s``.
        AuthenticationFailed: the server refused the account.
    """
    return connect_for(origin(), url, clock=clock, observers=observers, **overrides)


def connect_for(
    created: Origin,
    url: str | None,
    *,
    clock: Clock | None = None,
    observers: Iterable[StoreObserver] = (),
    **overrides: object,
) -> Store:
    """Open a store for a caller at that place; see ``connect``."""
    if url is None:
        url = os.environ.get(URL_VARIABLE)
    if not url:
        msg = f"no URL was given and {URL_VARIABLE} is not set; pass one, for example sqlite:///latchwork.db"
        raise InvalidURL(msg)
    told = Observers(observers, kind=StoreObserver)
    return Store(_open(url, overrides, clock if clock is not None else SYSTEM_CLOCK, told), created=created)


def session_ttl_s(store: Store | str, given: float | None, default: float) -> float:
    """Return the TTL of a session that a system opens: its option, else that of the URL, else its default.

    Args:
        store: the store of the system, or the URL of one.
        given: the option of the system; None if it is not given.
        default: seconds.
    Raises:
        ValueError: the option is no number of seconds above 0.
        InvalidURL: the URL cannot be used.
    """
    if given is None:
        found = parse_url(store).given_session_ttl_s if isinstance(store, str) else store.given_session_ttl_s
        return default if found is None else found
    if not is_number(given) or given <= 0:
        raise ValueError(f"session_ttl_s must be a number of seconds above 0, not {given!r}")
    return float(given)


def _open(url: str, overrides: Mapping[str, object], clock: Clock, told: Observers[StoreObserver]) -> Core:
    parsed = parse_url(url, overrides)
    return Core(
        open_backend(parsed, clock),
        clock,
        parsed.redacted(),
        session_ttl_s=parsed.session_ttl_s,
        given_session_ttl_s=parsed.given_session_ttl_s,
        call_timeout_s=parsed.call_timeout_s,
        observers=told,
        again=partial(_open, url, overrides, clock, told),
    )
