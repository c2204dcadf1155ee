"""What raw clients see of servers that lose data all by themselves, which no client can make up for.

Two faults of etcd are known for it (docs/guarantees.md, "Server versions"): a server that stands alone, before
3.4.21 and 3.5.5, may lose the last writes that it confirmed when it is killed; the members of a cluster of 3.5.0 to
3.5.2 may end up with different data. Where a raw client saw that, a history without an order is no evidence against
the store, and a play whose members differ is given again.
"""

from __future__ import annotations

import subprocess
from contextlib import closing
from typing import TYPE_CHECKING

from latchwork_testkit.binaries import find_etcd
from latchwork_testkit.servers import EtcdCluster, EtcdServer
from trials.raw import RawEtcd, etcd_members_differ

if TYPE_CHECKING:
    from latchwork_testkit.servers import ZooKeeperEnsemble, ZooKeeperServer


class Witness:
    """Asks servers for their revision around a kill. Others than etcd of a version known to forget are not asked.

    Attributes:
        seen: what was lost, in words; empty while nothing was.
    """

    def __init__(self, server: EtcdServer | ZooKeeperServer | EtcdCluster | ZooKeeperEnsemble) -> None:
        self.seen = ""
        self._alone = server if isinstance(server, EtcdServer) and may_forget(version_of(server.version)) else None
        self._revision = 0
        self._members = server.members if isinstance(server, EtcdCluster) else []

    def before_a_kill(self) -> None:
        if self._alone is not None:
            self._revision = _revision(self._alone.endpoint)

    def after_the_restart(self) -> None:
        if self._alone is None:
            return
        revision = _revision(self._alone.endpoint)
        if revision < self._revision:
            self.seen = (
                f"the server was at revision {self._revision}, and at {revision} after it was killed and restarted"
            )

    def describe(self) -> str:
        """What was lost; members of a cluster are compared now. Empty: nothing is known against the servers."""
        if self._members and may_differ(version_of(self._members[0].version)):
            return etcd_members_differ([member.endpoint for member in self._members])
        return self.seen


def _revision(endpoint: str) -> int:
    with closing(RawEtcd([endpoint], "")) as raw:
        return raw.revision()


def version_of(series: str) -> tuple[int, ...]:
    told = subprocess.run([find_etcd(series), "--version"], check=True, capture_output=True, text=True).stdout
    return tuple(int(part) for part in told.split()[2].split("."))


def may_forget(version: tuple[int, ...]) -> bool:
    return version < (3, 4, 21) or (3, 5) <= version < (3, 5, 5)


def may_differ(version: tuple[int, ...]) -> bool:
    return (3, 5) <= version < (3, 5, 3)
