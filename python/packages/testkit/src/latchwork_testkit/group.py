"""The base class of etcd clusters and ZooKeeper ensembles: members that elect a leader, and links that can be cut."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from typing import Generic, Literal, TypeVar

from latchwork_testkit.links import ProxyLinks
from latchwork_testkit.network import Network
from latchwork_testkit.server import Launcher, Server, ServerFailed

_LEADER_INTERVAL_S = 0.05

_Member = TypeVar("_Member", bound=Server)
#: Whether links between members can be cut, and how: True is by network namespaces.
NetworkOption = bool | Literal["proxies"]


class Group(Launcher, Generic[_Member]):
    """A group of servers that elect a leader. Tests can kill, pause and restart single `members`.

    `start` starts the members that are not running.
    """

    members: list[_Member]
    _network: Network | ProxyLinks | None = None

    def _set_members(self, members: list[_Member], network: NetworkOption) -> None:
        self.members = members
        if network == "proxies":
            self._network = self._make_links()
            for member in members:
                member._pin_ports()  # the proxies connect to them
        elif network:
            self._network = network_namespaces = Network(len(members))
            for number, member in enumerate(members):
                member._host, member._command_prefix = (
                    network_namespaces.hosts[number],
                    network_namespaces.command_prefix(number),
                )

    @abstractmethod
    def _make_links(self) -> ProxyLinks:
        """Create proxies for the links between the members, and configure the members to use them."""

    @property
    def network(self) -> Network | ProxyLinks:
        """The links between the members, which tests can cut.

        Raises:
            ServerFailed: The servers were created without `network`.
        """
        if self._network is None:
            raise ServerFailed(
                f"the links of {self!r} cannot be cut; create it with network=True, or network='proxies'"
            )
        return self._network

    @property
    def endpoint(self) -> str:
        """`host:port` of every member, joined by commas."""
        return ",".join(member.endpoint for member in self.members)

    @property
    def running(self) -> bool:
        """Whether every member is running."""
        return all(member.running for member in self.members)

    def leader(self, *, timeout_s: float = 10.0) -> _Member:
        """Wait until a member reports that it is the leader, and return it.

        A former leader that was cut off may still report this.

        Args:
            timeout_s: Seconds to wait.
        Raises:
            ServerFailed: No member was the leader within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while time.monotonic() < deadline:
            for member in self.members:
                if member.running and member.is_leader():
                    return member
            pause.wait(_LEADER_INTERVAL_S)
        raise ServerFailed(f"none of {self.endpoint} leads after {timeout_s} s; a majority must be running")

    def followers(self, *, timeout_s: float = 10.0) -> list[_Member]:
        """Wait for a leader, and return all other members, including stopped ones.

        Args:
            timeout_s: Seconds to wait for a leader.
        Raises:
            ServerFailed: No member was the leader within `timeout_s`.
        """
        leader = self.leader(timeout_s=timeout_s)
        return [member for member in self.members if member is not leader]

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """Stop every member, or kill it after `timeout_s` seconds. Keeps the data."""
        for member in self.members:
            member.stop(timeout_s=timeout_s)

    def kill(self) -> None:
        """Kill every member (SIGKILL) and keep the data."""
        for member in self.members:
            member.kill()

    def pause(self) -> None:
        """Freeze every member (SIGSTOP)."""
        for member in self.members:
            member.pause()

    def resume(self) -> None:
        """Continue every member after `pause`."""
        for member in self.members:
            member.resume()

    def close(self) -> None:
        """Stop every member, remove its data, and remove the links."""
        for member in self.members:
            member.close()
        if self._network is not None:
            self._network.close()

    def _spawn(self) -> None:
        for member in self.members:
            if not member.running:
                member._spawn()

    def _await_ready(self, deadline: float) -> None:
        for member in self.members:
            member._await_ready(deadline)

    def _renew_ports(self) -> bool:
        renewed = [member._renew_ports() for member in self.members]
        return all(renewed)

    def _pin_ports(self) -> None:
        for member in self.members:
            member._pin_ports()

    def __repr__(self) -> str:
        return f"<group of {', '.join(map(repr, self.members))}>"
