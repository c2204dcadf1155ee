"""Links between the members of a cluster that can be cut without being root: a proxy stands in each, both ways.

    with ZooKeeperEnsemble(3, network="proxies") as ensemble:
        ensemble.network.cut(0, 1)      # members 0 and 1 lose each other; neither is told
        ensemble.network.heal()

A cut link is a black hole: connections stay open and silent, new ones are taken and stay silent too. All members share
one host; clients reach them directly. What tells a proxy whose link it is differs:

- A ZooKeeper member has names for the others that resolve, for it alone, to the proxies in its own links. In elections
  a member tells its address to whom it connects, to be connected to in turn: the proxy tells its own instead.
- etcd members all dial one address for each member; there the owner of the dialling socket is looked up in /proc.

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
    """What can be done to the links between some members, numbered from 0. One thread at a time."""

    def __init__(self) -> None:
        self._links: dict[tuple[int, int], list[Proxy]] = {}

    @property
    def size(self) -> int:
        """Number of members."""
        return len({number for link in self._links for number in link})

    def cut(self, one: int, other: int) -> None:
        """Let nothing pass between two members any more; what was sent before may have arrived."""
        for link in ((one, other), (other, one)):
            for proxy in self._links[link]:
                proxy.hold()

    def isolate(self, number: int) -> None:
        """Cut one member off from all the others; clients still reach it."""
        for other in range(self.size):
            if other != number:
                self.cut(number, other)

    def heal(self) -> None:
        """End every cut; what was sent meanwhile arrives."""
        for proxies in self._links.values():
            for proxy in proxies:
                proxy.release()

    def close(self) -> None:
        """End the proxies; the members should have ended before. Twice is fine."""
        for proxies in self._links.values():
            for proxy in proxies:
                proxy.close()


class NamedLinks(Links):
    """Links of members that look each other up by name, each in a hosts file of its own.

    Args:
        ports: of each member, the ones for the quorum and for elections.
    """

    def __init__(self, ports: list[tuple[int, int]]) -> None:
        super().__init__()
        numbers = range(len(ports))
        for here in numbers:
            for there in numbers:
                if here != there:
                    quorum, election = ports[there]
                    told = f"{self._address(there, here)}:{ports[here][1]}"
                    address = self._address(here, there)
                    self._links[here, there] = [
                        # A follower may be sooner to know its leader than that to listen.
                        Proxy(f"{HOST}:{quorum}", address=(address, quorum), patience_s=_SOONER_S),
                        _Introduction(f"{HOST}:{election}", told, address=(address, election)),
                    ]

    @staticmethod
    def name(number: int) -> str:
        """What every member calls this one."""
        return f"member{number + 1}"

    def hosts_file(self, number: int) -> str:
        """The content of a member's hosts file: itself as it is, the others as proxies."""
        lines = [f"{HOST} localhost {socket.gethostname()} {self.name(number)}"]
        lines += [f"{self._address(number, other)} {self.name(other)}" for other in range(self.size) if other != number]
        return "\n".join(lines) + "\n"

    @staticmethod
    def _address(here: int, there: int) -> str:
        """Any address of the loopback network will do; the port is reserved."""
        return f"127.0.{here + 1}.{there + 1}"


class _Introduction(Proxy):
    """Passes elections on, and tells the one who is called where to call back: at the proxy of the link that way."""

    def __init__(self, member: str, told: str, *, address: tuple[str, int]) -> None:
        self._told = told.encode()
        super().__init__(member, address=address)

    def _greeting(self, chunk: bytes) -> bytes:
        """Version of the protocol, id of the caller, length of its address, its address."""
        if len(chunk) < _HELLO.size:
            return chunk
        version, caller, length = _HELLO.unpack_from(chunk)
        return _HELLO.pack(version, caller, len(self._told)) + self._told + chunk[_HELLO.size + length :]


class SharedLinks(Links):
    """Links of members that all have the same address for a member: behind it, each gets to the proxy of its own link.

    Args:
        ports: of each member, the one that the others connect to.
        pid_of: process id of a member; None while it does not run.
    """

    def __init__(self, ports: list[int], pid_of: Callable[[int], int | None]) -> None:
        super().__init__()
        numbers = range(len(ports))
        self._links = {
            (here, there): [Proxy(f"{HOST}:{ports[there]}")] for here in numbers for there in numbers if here != there
        }
        self._doors = [
            _Door(
                f"{HOST}:{ports[there]}",
                {here: self._links[here, there][0].endpoint for here in numbers if here != there},
                pid_of,
            )
            for there in numbers
        ]

    def endpoint(self, number: int) -> str:
        """Where everybody finds this member."""
        return self._doors[number].endpoint

    def close(self) -> None:
        """As in ``Links``."""
        for door in self._doors:
            door.close()
        super().close()


class _Door(Proxy):
    """Passes each connection on to the proxy of its owner's link; strangers get straight to the member."""

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
    """Which of these processes has the socket bound to a local port."""
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
