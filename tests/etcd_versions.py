"""The versions of etcd that plays are given on, and whether a program of each is on this machine."""

from __future__ import annotations

from latchwork_testbed.binaries import find_etcd
from latchwork_testbed.servers import ServerMissing

#: Backend to version.
ETCD = {"etcd34": "3.4", "etcd35": "3.5", "etcd36": "3.6"}


def is_there(backend: str) -> bool:
    """Whether it can be checked here; where it cannot, that is said loudly."""
    try:
        if backend in ETCD:
            find_etcd(ETCD[backend])
    except ServerMissing as error:
        print(f"!!\n!! {backend} is NOT checked: {error}\n!!", flush=True)
        return False
    return True
