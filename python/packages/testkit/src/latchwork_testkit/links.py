"""Links between the members of a cluster that tests can cut without root privileges: there is a proxy in each link and
direction.

    with ZooKeeperEnsemble(3, network="proxies") as ensemble:
        ensemble.network.cut(0, 1)      # members 0 and 1 cannot reach each other
        ensemble.network.heal()

A cut link is a black hole: open connections stay open and silent, and so do new ones. All members run on one host, and
clients connect to them directly. How a proxy knows the link of a connection depends on the server:

- Each ZooKeeper member has its own hosts file, in which the names of the other members resolve to the proxies of its
links. In an election, a member sends its address to the member that it connects to, which connects back. The proxy
replaces that address with its own.
- All etcd members use the same address for a member. Its proxy looks up in /proc which process opened a connection.

Linux only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from latchwork_testkit.ports import HOST
from latchwork_testkit.proxy import Proxy

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

__all__ = ["HostsFileLinks", "ProxyLinks", "SharedAddressLinks"]

_LISTEN_WAIT_S = 5.0
_ELECTION_HEADER = struct.Struct("!qqi")
_TCP_TABLE = Path("/proc/net/tcp")
_LOCAL_ADDRESS, _INODE = 1, 9


class ProxyLinks:
    """The links between the members of a cluster, with a proxy in each. Members are numbered from 0.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._links: dict[tuple[int, int], list[Proxy]] = {}

    @property
    def size(self) -> int:
        """The number of members."""
        return len({number for link in self._links for number in link})

    def cut(self, one: int, other: int) -> None:
        """Cut the link between two members until `heal`. Data that was sent before may still arrive."""
        for link in ((one, other), (other, one)):
            for proxy in self._links[link]:
                proxy.hold()

    def isolate(self, number: int) -> None:
        """Cut the links between one member and all others until `heal`. Clients can still connect to it."""
        for other in range(self.size):
            if other != number:
                self.cut(number, other)

    def heal(self) -> None:
        """Restore all links. Data that was sent while they were cut arrives now."""
        for proxies in self._links.values():
            for proxy in proxies:
                proxy.release()

    def close(self) -> None:
        """Close the proxies between the members. Call this after the member processes have ended. Idempotent."""
        for proxies in self._links.values():
            for proxy in proxies:
                proxy.close()


class HostsFileLinks(ProxyLinks):
    """Links for servers that find each other by host names, such as ZooKeeper. Each member has its own hosts file.

    Args:
        ports: The quorum port and the election port of each member.
    """

    def __init__(self, ports: list[tuple[int, int]]) -> None:
        super().__init__()
        numbers = range(len(ports))
        for here in numbers:
            for there in numbers:
                if here != there:
                    quorum, election = ports[there]
                    advertised = f"{self._get_proxy_address(there, here)}:{ports[here][1]}"
                    address = self._get_proxy_address(here, there)
                    self._links[here, there] = [
                        # A follower may know its leader before the leader listens.
                        Proxy(f"{HOST}:{quorum}", address=(address, quorum), patience_s=_LISTEN_WAIT_S),
                        _ElectionProxy(f"{HOST}:{election}", advertised, address=(address, election)),
                    ]

    @staticmethod
    def host_name(number: int) -> str:
        """Return the host name of a cluster member. The hosts file of each member maps it to the address of a link."""
        return f"member{number + 1}"

    def hosts_file(self, number: int) -> str:
        """Return the content of a member's hosts file. Its own name is a loopback address, and the other names are
        proxies.

        Args:
            number: Number of the member.
        """
        lines = [f"{HOST} localhost {socket.gethostname()} {self.host_name(number)}"]
        lines += [
            f"{self._get_proxy_address(number, other)} {self.host_name(other)}"
            for other in range(self.size)
            if other != number
        ]
        return "\n".join(lines) + "\n"

    @staticmethod
    def _get_proxy_address(here: int, there: int) -> str:
        """Return the loopback address of the proxy from one member to another.

        The port is reserved, so any address of 127.0.0.0/8 is free.

        Args:
            here: Number of the member that connects.
            there: Number of the member that it connects to.
        """
        return f"127.0.{here + 1}.{there + 1}"


class _ElectionProxy(Proxy):
    """A proxy for connections of ZooKeeper's leader election. Replaces the address to connect back to with that of a
    proxy.
    """

    def __init__(self, member: str, advertised: str, *, address: tuple[str, int]) -> None:
        self._advertised = advertised.encode()
        super().__init__(member, address=address)

    def _rewrite_first_chunk(self, chunk: bytes) -> bytes:
        """Replace the sender's address in the first message of a ZooKeeper election by the address of a proxy.

        The message contains the protocol version, the ID of the sender, the length of the address, and the address.
        """
        if len(chunk) < _ELECTION_HEADER.size:
            return chunk
        version, caller, length = _ELECTION_HEADER.unpack_from(chunk)
        return (
            _ELECTION_HEADER.pack(version, caller, len(self._advertised))
            + self._advertised
            + chunk[_ELECTION_HEADER.size + length :]
        )


class SharedAddressLinks(ProxyLinks):
    """Links for servers that all use the same address for a member, such as etcd.

    Connections to that address are distributed to the proxies of the links.

    Args:
        ports: The port of each member that the other members connect to.
        pid_of: Returns the process ID of a member, or None while it is not running.
    """

    def __init__(self, ports: list[int], pid_of: Callable[[int], int | None]) -> None:
        super().__init__()
        numbers = range(len(ports))
        self._links = {
            (here, there): [Proxy(f"{HOST}:{ports[there]}")] for here in numbers for there in numbers if here != there
        }
        self._endpoints = [
            _SharedAddressProxy(
                f"{HOST}:{ports[there]}",
                {here: self._links[here, there][0].endpoint for here in numbers if here != there},
                pid_of,
            )
            for there in numbers
        ]

    def endpoint(self, number: int) -> str:
        """Return the `host:port` at which all other members reach this member."""
        return self._endpoints[number].endpoint

    def close(self) -> None:
        """Close the proxies between the members. Call this after the member processes have ended. Idempotent."""
        for endpoint in self._endpoints:
            endpoint.close()
        super().close()


class _SharedAddressProxy(Proxy):
    """A proxy that passes a connection of another member to the proxy of its link, and any other connection directly to
    the server.
    """

    def __init__(self, member: str, link_endpoints: dict[int, str], pid_of: Callable[[int], int | None]) -> None:
        self._link_endpoints = link_endpoints
        self._pid_of = pid_of
        super().__init__(member)

    def _target_of(self, client: asyncio.StreamWriter) -> tuple[str, int]:
        owner = _find_member_of_port(
            client.get_extra_info("peername")[1], {self._pid_of(number): number for number in self._link_endpoints}
        )
        if owner is None:
            return super()._target_of(client)
        host, _, port = self._link_endpoints[owner].rpartition(":")
        return host, int(port)


def _find_member_of_port(port: int, numbers: dict[int | None, int]) -> int | None:
    """Return the number of the member whose process opened a connection, or None if it is no member.

    Args:
        port: The local port of the connection.
        numbers: The number of each member, by process ID.
    """
    inode = _socket_inode(port)
    for pid, number in numbers.items():
        if pid is not None and f"socket:[{inode}]" in _open_files(pid):
            return number
    return None


def _socket_inode(port: int) -> str:
    local = f"{socket.inet_aton(HOST)[::-1].hex().upper()}:{port:04X}"
    for line in _TCP_TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[_LOCAL_ADDRESS] == local:
            return fields[_INODE]
    return ""


def _open_files(pid: int) -> Iterable[str]:
    for entry in _list_directory(Path(f"/proc/{pid}/fd")):
        with contextlib.suppress(OSError):
            yield os.readlink(entry)  # noqa: PTH115 - the text of the link, not its target


def _list_directory(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:  # the process has ended
        return []
