"""From a URL to a store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial

from latchwork.backends.url import open_backend, parse_url, url_of_client
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
    client: object = None,
    clock: Clock | None = None,
    observers: Iterable[StoreObserver] = (),
    **overrides: object,
) -> Store:
    """Open a store.

    Keep the store, or something made with it, and close it. A store that is dropped emits a ``ResourceWarning`` and is
    closed, and its sessions, watches and mirrors with it.

    Args:
        url: ``etcd://``, ``zk://``, ``sqlite://`` or ``memory://``; None reads the environment's ``LATCHWORK_URL``.
        client: a client of python-etcd3 or of a fork of it, instead of a URL. Its channel and its token are used, and
            it stays open when the store is closed: close it after the store.
        clock: the clock that sessions and waits use; None for the machine's.
        observers: told of each call and each session: ``StoreMetrics()``, your own.
        overrides: options of the URL by name, which win over those in it (``session_ttl_s=5``, ``root="app"``).
    Returns:
        A store, connected.
    Raises:
        InvalidURL: an unknown scheme or option, or a malformed host; the message lists what is known. Or both a URL
            and a client.
        TypeError: the client is of another library.
        BackendNotInstalled: the client library is missing; the message has the install line.
        ConnectFailed: no server answered within ``connect_timeout_s``.
        AuthenticationFailed: the server refused the account.
    """
    return connect_for(origin(), url, client=client, clock=clock, observers=observers, **overrides)


def connect_for(
    created: Origin,
    url: str | None,
    *,
    client: object = None,
    clock: Clock | None = None,
    observers: Iterable[StoreObserver] = (),
    **overrides: object,
) -> Store:
    """Open a store for a caller at that place; see ``connect``."""
    if client is not None:
        if url is not None:
            raise InvalidURL("give a URL or a client, not both; the root and other options go by name: root='app'")
        url = url_of_client(client)
    elif url is None:
        url = os.environ.get(URL_VARIABLE)
    if not url:
        msg = f"no URL was given and {URL_VARIABLE} is not set; pass one, for example sqlite:///latchwork.db"
        raise InvalidURL(msg)
    told = Observers(observers, kind=StoreObserver)
    return Store(_open(url, client, overrides, clock if clock is not None else SYSTEM_CLOCK, told), created=created)


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


def _open(
    url: str, client: object, overrides: Mapping[str, object], clock: Clock, told: Observers[StoreObserver]
) -> Core:
    parsed = parse_url(url, overrides)
    return Core(
        open_backend(parsed, clock, client),
        clock,
        parsed.redacted(),
        session_ttl_s=parsed.session_ttl_s,
        given_session_ttl_s=parsed.given_session_ttl_s,
        call_timeout_s=parsed.call_timeout_s,
        observers=told,
        again=partial(_open, url, client, overrides, clock, told),
    )
