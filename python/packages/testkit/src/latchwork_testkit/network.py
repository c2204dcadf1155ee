"""A network of Linux namespaces in which tests can cut the links between servers, while clients stay connected.

    with EtcdCluster(3, network=True) as cluster:
        cluster.network.cut(0, 1)       # members 0 and 1 cannot reach each other
        cluster.network.heal()

Each host is a namespace with an address on a bridge. The tests are on the same bridge. A cut is a pair of black-hole
routes: packets are dropped silently and connections stay open, as in a real partition. Needs root and iproute2. Linux
only.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from latchwork.errors import LatchworkError
from latchwork_testkit.binaries import find_ip_command

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Network", "NetworkUnavailable"]

_NAMESPACES = Path("/run/netns")
_PREFIX = "lw"
_numbers = itertools.count()


class NetworkUnavailable(LatchworkError):
    """Network namespaces cannot be created here. The message says what is missing."""


class Network:
    """A network of several hosts on a bridge, each with its own address. Hosts are numbered from 0. Not thread-safe.

    Args:
        size: Number of hosts.

    Attributes:
        hosts: Address of each host.

    Raises:
        NetworkUnavailable: We are not root, iproute2 is missing, or the kernel refuses.
    """

    def __init__(self, size: int) -> None:
        _remove_orphaned_namespaces()
        number, pid = next(_numbers), os.getpid()
        self._name = f"{_PREFIX}{pid}-{number}"  # 15 characters at most, including the number of the cable
        subnet = f"10.{200 + pid % 50}.{(pid // 50 + number * 7) % 256}"
        self.hosts = [f"{subnet}.{host + 2}" for host in range(size)]
        self._cuts: set[tuple[int, int]] = set()
        try:
            self._create(subnet)
        except BaseException:
            self.close()
            raise

    def command_prefix(self, host: int) -> list[str]:
        """Return the arguments to put before a command so that it runs on this host."""
        return [str(find_ip_command()), "netns", "exec", self._namespace_of(host)]

    def cut(self, one: int, other: int) -> None:
        """Cut the link between two hosts until `heal`. Data that was sent before may still arrive."""
        for here, there in ((one, other), (other, one)):
            if (here, there) not in self._cuts:
                self._cuts.add((here, there))
                _run_ip("-n", self._namespace_of(here), "route", "add", "blackhole", f"{self.hosts[there]}/32")

    def isolate(self, host: int) -> None:
        """Cut the links between one host and all others until `heal`. The tests can still connect to it."""
        for other in range(len(self.hosts)):
            if other != host:
                self.cut(host, other)

    def heal(self) -> None:
        """Restore all links."""
        while self._cuts:
            here, there = self._cuts.pop()
            _run_ip("-n", self._namespace_of(here), "route", "del", "blackhole", f"{self.hosts[there]}/32")

    def close(self) -> None:
        """Remove the hosts and the bridge. Call it after all processes on the hosts have ended. Idempotent."""
        self._cuts.clear()
        for host in range(len(self.hosts)):
            if (_NAMESPACES / self._namespace_of(host)).exists():
                _run_ip("netns", "del", self._namespace_of(host))
        with contextlib.suppress(NetworkUnavailable):
            _run_ip("link", "del", self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _create(self, subnet: str) -> None:
        _run_ip("link", "add", self._name, "type", "bridge")
        _run_ip("addr", "add", f"{subnet}.1/24", "dev", self._name)
        _run_ip("link", "set", self._name, "up")
        for host, address in enumerate(self.hosts):
            namespace, cable = self._namespace_of(host), f"{self._name}v{host}"
            _run_ip("netns", "add", namespace)
            _run_ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _run_ip("link", "set", cable, "master", self._name, "up")
            _run_ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            _run_ip("-n", namespace, "link", "set", "eth0", "up")
            _run_ip("-n", namespace, "link", "set", "lo", "up")

    def _namespace_of(self, host: int) -> str:
        return f"{self._name}n{host}"


def _run_ip(*arguments: str) -> None:
    done = subprocess.run([str(find_ip_command()), *arguments], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        message = done.stderr.strip() or f"status {done.returncode}"
        raise NetworkUnavailable(f"ip {' '.join(arguments)} failed: {message}; network namespaces need root")


def _remove_orphaned_namespaces() -> None:
    """Remove the network namespaces that killed test processes have left. Their names contain the process ID."""
    for namespace in _NAMESPACES.glob(f"{_PREFIX}*-*n*") if _NAMESPACES.is_dir() else ():
        owner, _, rest = namespace.name.removeprefix(_PREFIX).partition("-")
        if not owner.isdigit() or Path(f"/proc/{owner}").exists():
            continue
        for leftover in (
            ("netns", "del", namespace.name),
            ("link", "del", f"{_PREFIX}{owner}-{rest.partition('n')[0]}"),
        ):
            with contextlib.suppress(NetworkUnavailable):  # another process has removed it
                _run_ip(*leftover)
