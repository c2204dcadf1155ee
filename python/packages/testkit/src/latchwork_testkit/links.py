"""Links between the members of a cluster that can be cut without root: a proxy in each link and direction.

    with ZooKeeperEnsemble(3, network="proxies") as ensemble:
        ensemble.network.cut(0, 1)      # members 0 and 1 lose each other without a notice
        ensemble.network.heal()

A cut link is a black hole: open connections stay open and silent, and so do new ones. All members run on one host, and
clients reach them directly. How a proxy knows the link of a connection depends on the server:

- A ZooKeeper member has a hosts file in which the names of the others resolve to the proxies of its own links. In
elections, a member sends its address to the member that it connects to, which connects back. The proxy replaces that
address with its own.
- All etcd members use one address for each member. There the proxy looks up the process of the connecting socket in
/proc.

Linux only, like the servers.
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

__all__ = ["Links", "NamedLinks", "SharedLinks"]

_SOONER_S = 5.0
_HELLO = struct.Struct("!qqi")
_TCP_TABLE = Path("/proc/net/tcp")
_LOCAL_ADDRESS, _INODE = 1, 9


class Links:
    """The links between some members, which are numbered from 0. Not thread-safe."""

    def __init__(self) -> None:
        self._links: dict[tuple[int, int], list[Proxy]] = {}

    @property
    def size(self) -> int:
        """The number of members."""
        return len({number for link in self._links for number in link})

    def cut(self, one: int, other: int) -> None:
        """Let no data pass between two members from now on. Data sent before may have arrived."""
        for link in ((one, other), (other, one)):
            for proxy in self._links[link]:
                proxy.hold()

    def isolate(self, number: int) -> None:
        """Cut all links of one member. Clients still reach it."""
        for other in range(self.size):
            if other != number:
                self.cut(number, other)

    def heal(self) -> None:
        """End every cut. Data sent during the cut arrives."""
        for proxies in self._links.values():
            for proxy in proxies:
                proxy.release()

    def close(self) -> None:
        """Close the proxies, after the members have ended. Idempotent."""
        for proxies in self._links.values():
            for proxy in proxies:
                proxy.close()


class NamedLinks(Links):
    """Links of members that look each other up by name, each in its own hosts file.

    Args:
        ports: The quorum and election ports of each member.
    """

    def __init__(self, ports: list[tuple[int, int]]) -> None:
        super().__init__()
        numbers = range(len(ports))
        for here in numbers:
            for there in numbers:
                if here != there:
                    quorum, election = ports[there]
                    advertised = f"{self._address(there, here)}:{ports[here][1]}"
                    address = self._address(here, there)
                    self._links[here, there] = [
                        # A follower may be sooner to know its leader than that to listen.
                        Proxy(f"{HOST}:{quorum}", address=(address, quorum), patience_s=_SOONER_S),
                        _ElectionProxy(f"{HOST}:{election}", advertised, address=(address, election)),
                    ]

    @staticmethod
    def name(number: int) -> str:
        """Return the host name of a member."""
        return f"member{number + 1}"

    def hosts_file(self, number: int) -> str:
        """Return the content of a member's hosts file: its own name for loopback, and the proxies for the others."""
        lines = [f"{HOST} localhost {socket.gethostname()} {self.name(number)}"]
        lines += [f"{self._address(number, other)} {self.name(other)}" for other in range(self.size) if other != number]
        return "\n".join(lines) + "\n"

    @staticmethod
    def _address(here: int, there: int) -> str:
        """Return a loopback address for a link. Any address of 127.0.0.0/8 works, because the port is reserved."""
        return f"127.0.{here + 1}.{there + 1}"


class _ElectionProxy(Proxy):
    """Forwards elections, and replaces the address at which the called member connects back with that of a proxy."""

    def __init__(self, member: str, advertised: str, *, address: tuple[str, int]) -> None:
        self._advertised = advertised.encode()
        super().__init__(member, address=address)

    def _rewrite_first_chunk(self, chunk: bytes) -> bytes:
        """Replace the address in the first message: protocol version, ID of the caller, length of the address,
        address.
        """
        if len(chunk) < _HELLO.size:
            return chunk
        version, caller, length = _HELLO.unpack_from(chunk)
        return _HELLO.pack(version, caller, len(self._advertised)) + self._advertised + chunk[_HELLO.size + length :]


class SharedLinks(Links):
    """Links of members that all use the same address for a member. Behind it, each connection goes to the proxy of its
    link.

    Args:
        ports: The port of each member that the others connect to.
        pid_of: Returns the process ID of a member, or None while it is not running.
    """

    def __init__(self, ports: list[int], pid_of: Callable[[int], int | None]) -> None:
        super().__init__()
        numbers = range(len(ports))
        self._links = {
            (here, there): [Proxy(f"{HOST}:{ports[there]}")] for here in numbers for there in numbers if here != there
        }
        self._endpoints = [
            _SharedEndpoint(
                f"{HOST}:{ports[there]}",
                {here: self._links[here, there][0].endpoint for here in numbers if here != there},
                pid_of,
            )
            for there in numbers
        ]

    def endpoint(self, number: int) -> str:
        """Return the `host:port` that all other members use for this member."""
        return self._endpoints[number].endpoint

    def close(self) -> None:
        """Close the proxies, after the members have ended. Idempotent."""
        for endpoint in self._endpoints:
            endpoint.close()
        super().close()


class _SharedEndpoint(Proxy):
    """Forwards the connection of a member to the proxy of its link, and any other connection directly to the server."""

    def __init__(self, member: str, links: dict[int, str], pid_of: Callable[[int], int | None]) -> None:
        self._link_of = links
        self._pid_of = pid_of
        super().__init__(member)

    def _target_of(self, near: asyncio.StreamWriter) -> tuple[str, int]:
        owner = _owner(near.get_extra_info("peername")[1], {self._pid_of(number): number for number in self._link_of})
        if owner is None:
            return super()._target_of(near)
        host, _, port = self._link_of[owner].rpartition(":")
        return host, int(port)


def _owner(port: int, numbers: dict[int | None, int]) -> int | None:
    """Return the number of the process that has the socket bound to a local port, or None."""
    inode = _inode(port)
    for pid, number in numbers.items():
        if pid is not None and f"socket:[{inode}]" in _open_files(pid):
            return number
    return None


def _inode(port: int) -> str:
    local = f"{socket.inet_aton(HOST)[::-1].hex().upper()}:{port:04X}"
    for line in _TCP_TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[_LOCAL_ADDRESS] == local:
            return fields[_INODE]
    return ""


def _open_files(pid: int) -> Iterable[str]:
    for entry in _listed(Path(f"/proc/{pid}/fd")):
        with contextlib.suppress(OSError):
            yield os.readlink(entry)  # noqa: PTH115 - what it says, not where it leads


def _listed(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:  # it has ended
        return []
