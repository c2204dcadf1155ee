"""Store on etcd 3.4 and newer, over etcd3's generated stubs on a gRPC channel of our own.

Keys:   /<root>/<key>                 as the user named them, readable with etcdctl
        /<root>/@s/<session>          marker of a live session, bound to its lease
        /<root>/@w/<writer>/<slot>    guards of one open store's writes, bound to that store's own lease
        /<root>/@q/<parent>           last number given out by create_sequential below that parent

An account needs read and write on the prefix /<root>/. This module imports no client library.
"""

from __future__ import annotations

import itertools

from latchwork.backends.base import Backend
from latchwork.backends.offload import OffloadedBackend
from latchwork.backends.url import SchemeSpec, StoreURL, readable_file
from latchwork.clock import Clock

SPEC = SchemeSpec(
    schemes=("etcd",),
    default_port=2379,
    options={"tls_ca": readable_file, "tls_cert": readable_file, "tls_key": readable_file},
    extra="etcd",
)

_numbers = itertools.count(1)


def open_backend(url: StoreURL, clock: Clock) -> Backend:
    """Connect to the etcd cluster that the URL names.

    Raises:
        ConnectFailed: no member answered within ``connect_timeout_s``, or TLS could not be agreed.
        AuthenticationFailed: the server refused the user or the password, or wants one.
    """
    from latchwork.backends.etcd.backend import EtcdBackend

    name = f"latchwork-etcd-{next(_numbers)}"
    return OffloadedBackend(lambda: EtcdBackend.connect(url, clock), name, url.call_timeout_s)
