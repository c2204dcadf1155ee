"""The ZooKeeper store: ``zk://host:port,host:port/root``, over kazoo's connection and our own requests.

Needs servers of version 3.6 or newer (multi-read and persistent recursive watches).
"""

from __future__ import annotations

from latchwork.backends.base import Backend
from latchwork.backends.capabilities import Capabilities
from latchwork.backends.url import SchemeSpec, StoreURL, one_of, readable_file
from latchwork.clock import Clock

SPEC = SchemeSpec(
    schemes=("zk", "zookeeper"),
    capabilities=Capabilities("zk", verifies_password=False, min_ttl_s=4.0, max_ttl_s=40.0),
    default_port=2181,
    options={
        "acl": one_of("creator", "open"),
        "sasl": one_of("digest-md5"),
        "tls_ca": readable_file,
        "tls_cert": readable_file,
        "tls_key": readable_file,
    },
    location="hosts",
    extra="zookeeper",
)


def open_backend(url: StoreURL, clock: Clock) -> Backend:
    """Connect to one of the ZooKeeper servers in the URL and return the backend.

    Digest authentication accepts any password when connecting. With a wrong one, later calls raise
    ``PermissionDenied``.

    Raises:
        BackendNotInstalled: kazoo is not installed.
        ConnectFailed: No server answered within ``connect_timeout_s``.
        AuthenticationFailed: The servers refused the account. Only with the option ``sasl``.
        InvalidURL: The option ``sasl`` is given without a user and a password.
    """
    from latchwork.backends.zookeeper.backend import ZooKeeperBackend

    return ZooKeeperBackend(url, clock)
