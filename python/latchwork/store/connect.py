"""Opens a store from a URL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial

from latchwork._base.validation import is_number
from latchwork.backends.url import open_backend, parse_url, url_of_client
from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.errors import InvalidURL
from latchwork.store.connection import StoreConnection
from latchwork.store.observe.calls import StoreObserver
from latchwork.store.observers import Observers
from latchwork.store.owner import CodeLocation, find_caller_location
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

    Keep a reference to the store, or to an object made with it, and close it. If it is dropped without being closed,
    the store emits a ``ResourceWarning`` and closes itself with its sessions, watches and mirrors.

    Args:
        url: ``etcd://``, ``zk://``, ``sqlite://`` or ``memory://``; None reads the environment variable
            ``LATCHWORK_URL``.
        client: A client of python-etcd3 or of a fork of it, instead of a URL. Its channel and token are used. Closing
            the store leaves it open: close it after the store.
        clock: Clock for sessions and waits; None uses the system clock.
        observers: Notified of each call and each session, such as ``StoreMetrics()`` or your own.
        overrides: URL options by name, which override those in the URL (``session_ttl_s=5``, ``root="app"``).
    Returns:
        A connected store.
    Raises:
        InvalidURL: The scheme or an option is unknown, the host is malformed, or both a URL and a client are given. The
            message lists the known ones.
        TypeError: The client belongs to another library.
        BackendNotInstalled: The client library is missing. The message shows how to install it.
        ConnectFailed: No server answered within ``connect_timeout_s``.
        AuthenticationFailed: The server rejected the account.
    """
    return connect_for(find_caller_location(), url, client=client, clock=clock, observers=observers, **overrides)


def connect_for(
    created: CodeLocation,
    url: str | None,
    *,
    client: object = None,
    clock: Clock | None = None,
    observers: Iterable[StoreObserver] = (),
    **overrides: object,
) -> Store:
    """Open a store like ``connect``.

    Args:
        created: The place in the caller's code, for the warning about a store that was not closed.
        url: The URL, or None for the environment variable ``LATCHWORK_URL``.
        client: A client of python-etcd3, instead of a URL.
        clock: Clock for sessions and waits. None uses the system clock.
        observers: Notified of each call and each session.
        overrides: URL options by name, which override those in the URL.
    """
    if client is not None:
        if url is not None:
            raise InvalidURL(
                "give a URL or a client, not both; pass the root and other options as keyword arguments: root='app'"
            )
        url = url_of_client(client)
    elif url is None:
        url = os.environ.get(URL_VARIABLE)
    if not url:
        msg = f"no URL was given and {URL_VARIABLE} is not set; pass one, for example sqlite:///latchwork.db"
        raise InvalidURL(msg)
    told = Observers(observers, kind=StoreObserver)
    return Store(_open(url, client, overrides, clock if clock is not None else SYSTEM_CLOCK, told), created=created)


def session_ttl_s(store: Store | str, given: float | None, default: float) -> float:
    """Return the session TTL of a component in seconds: its option, the TTL in the URL, or the default, in this order.

    Args:
        store: The component's store, or a store URL.
        given: The component's option. None if it was not given.
        default: The default TTL in seconds.
    Raises:
        ValueError: The option is not a number of seconds above 0.
        InvalidURL: The URL is invalid.
    """
    if given is None:
        found = parse_url(store).given_session_ttl_s if isinstance(store, str) else store.given_session_ttl_s
        return default if found is None else found
    if not is_number(given) or given <= 0:
        raise ValueError(f"session_ttl_s must be a number of seconds above 0, not {given!r}")
    return float(given)


def _open(
    url: str, client: object, overrides: Mapping[str, object], clock: Clock, told: Observers[StoreObserver]
) -> StoreConnection:
    parsed = parse_url(url, overrides)
    return StoreConnection(
        open_backend(parsed, clock, client),
        clock,
        parsed.redacted(),
        session_ttl_s=parsed.session_ttl_s,
        given_session_ttl_s=parsed.given_session_ttl_s,
        call_timeout_s=parsed.call_timeout_s,
        observers=told,
        again=partial(_open, url, client, overrides, clock, told),
    )
