"""The connections of this process. Stores with the same servers, account, TLS files and timeouts share one.

A connection has one channel, one stream of watches and one timer thread, for any number of stores
(docs/design/etcd-connections.md).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable
from typing import Any

from latchwork._base.interrupts import mutex
from latchwork.backends.etcd.channel import read_tls_files
from latchwork.backends.etcd.connection import EtcdConnection
from latchwork.backends.etcd.watching.watches import EtcdWatchHub
from latchwork.backends.timer import Timer
from latchwork.backends.url import StoreURL
from latchwork.clock import Clock

_numbers = itertools.count(1)


class SharedConnection:
    """A connection to a cluster, with its timer and watches, which several stores may share.

    Args:
        url: The parsed URL.
        clock: The local clock.
        tls: The contents of the TLS files in the URL, by the name of the option.
        key: Identifies the settings that the stores share. None if the connection is not shared.
        client: A client of python-etcd3 whose channel is used, or None.

    Attributes:
        key: As above.
        users: The number of stores that use it.
    """

    def __init__(self, url: StoreURL, clock: Clock, tls: dict[str, bytes], key: Hashable, client: Any = None) -> None:
        number = next(_numbers)
        self.key = key
        self.users = 1
        self._timer = Timer(clock, f"latchwork-etcd-timer-{number}")
        try:
            self.connection = EtcdConnection(url, clock, self._timer, tls, client)
        except BaseException:
            self._timer.close()
            raise
        self.hub = EtcdWatchHub(self.connection, f"latchwork-etcd-watch-{number}")

    def close(self, join_s: float) -> None:
        """End the watches and calls, and wait at most ``join_s`` seconds for the thread of the watches."""
        self.hub.close(join_s)
        self.connection.close()
        self._timer.close()


_lock = mutex()
#: The connections that new stores may share.
_shared: dict[Hashable, SharedConnection] = {}


def _forget_connections() -> None:
    """Remove the connections of the parent process, in a forked child. A thread of the parent may hold the lock."""
    global _lock  # noqa: PLW0603
    _lock = mutex()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_connections)


def acquire_connection(url: StoreURL, clock: Clock, client: Any = None) -> SharedConnection:
    """Return a connection for a store: a working one of another store with the same settings, or a new one.

    The channel of a user's client is not shared. The caller must call ``release`` once.

    Args:
        url: The parsed URL.
        clock: The local clock.
        client: A client of python-etcd3 whose channel is used, or None.
    """
    tls = read_tls_files(url)
    if client is not None:
        return SharedConnection(url, clock, tls, None, client)
    contents = tuple(sorted(tls.items()))
    key = (url.hosts, url.user, url.password, contents, url.connect_timeout_s, url.call_timeout_s, clock)
    found = _share_connection(key)
    if found is None:
        new = SharedConnection(url, clock, tls, key)  # without the lock, because looking up a host may take long
        found = _share_connection(key, new) or new
        if found is not new:
            new.close(0.0)
    return found


def release_connection(connection: SharedConnection, join_s: float) -> None:
    """Stop using a connection. It is closed if no other store uses it.

    Args:
        connection: The connection.
        join_s: Seconds to wait for its threads.
    """
    with _lock:
        connection.users -= 1
        is_last = not connection.users
        if is_last and _shared.get(connection.key) is connection:
            del _shared[connection.key]
    if is_last:
        connection.close(join_s)


def _share_connection(key: Hashable, new: SharedConnection | None = None) -> SharedConnection | None:
    """Return the connection to use, with one more user, or None if ``new`` must be used.

    Args:
        key: Identifies the settings.
        new: A new connection, which other stores will share if there is no working one.
    """
    with _lock:
        found = _shared.get(key)
        if found is not None and found.connection.healthy:
            found.users += 1
            return found
        if new is not None:
            _shared[key] = new
        return None
