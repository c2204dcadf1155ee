"""A network of Linux namespaces in which the links between servers can be cut, while clients stay connected.

    with EtcdCluster(3, network=True) as cluster:
        cluster.network.cut(0, 1)       # members 0 and 1 lose each other without a notice
        cluster.network.heal()

Each host is a namespace with one address on a bridge, and the tests are on that bridge, too. A cut is a pair of
black-hole routes: packets vanish and connections stay open, as in a real partition. Needs root and iproute2; Linux
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
from latchwork_testkit.binaries import find_ip

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Network", "NetworkUnavailable"]

_NAMESPACES = Path("/run/netns")
_PREFIX = "lw"
_numbers = itertools.count()


class NetworkUnavailable(LatchworkError):
    """Network namespaces cannot be created here. The message says what is missing."""


class Network:
    """A bridge with some hosts. Not thread-safe.

    Args:
        size: Number of hosts.

    Attributes:
        hosts: Address of each host.

    Raises:
        NetworkUnavailable: We are not root, iproute2 is missing, or the kernel refuses.
    """

    def __init__(self, size: int) -> None:
        _sweep()
        number, pid = next(_numbers), os.getpid()
        self._name = f"{_PREFIX}{pid}-{number}"  # 15 characters at most, with the cable's number
        subnet = f"10.{200 + pid % 50}.{(pid // 50 + number * 7) % 256}"
        self.hosts = [f"{subnet}.{number + 2}" for number in range(size)]
        self._cuts: set[tuple[int, int]] = set()
        try:
            self._build(subnet)
        except BaseException:
            self.close()
            raise

    def enter(self, number: int) -> list[str]:
        """Return the words to put in front of a command so that it runs on this host."""
        return [str(find_ip()), "netns", "exec", self._space(number)]

    def cut(self, one: int, other: int) -> None:
        """Let no data pass between two hosts from now on. Data sent before may have arrived."""
        for here, there in ((one, other), (other, one)):
            if (here, there) not in self._cuts:
                self._cuts.add((here, there))
                _ip("-n", self._space(here), "route", "add", "blackhole", f"{self.hosts[there]}/32")

    def isolate(self, number: int) -> None:
        """Cut all links of one host to the others. The tests still reach it."""
        for other in range(len(self.hosts)):
            if other != number:
                self.cut(number, other)

    def heal(self) -> None:
        """End every cut."""
        while self._cuts:
            here, there = self._cuts.pop()
            _ip("-n", self._space(here), "route", "del", "blackhole", f"{self.hosts[there]}/32")

    def close(self) -> None:
        """Remove the namespaces and the bridge, after everything in them has ended. Idempotent."""
        self._cuts.clear()
        for number in range(len(self.hosts)):
            if (_NAMESPACES / self._space(number)).exists():
                _ip("netns", "del", self._space(number))
        with contextlib.suppress(NetworkUnavailable):
            _ip("link", "del", self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _build(self, subnet: str) -> None:
        _ip("link", "add", self._name, "type", "bridge")
        _ip("addr", "add", f"{subnet}.1/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        for number, host in enumerate(self.hosts):
            space, cable = self._space(number), f"{self._name}v{number}"
            _ip("netns", "add", space)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", cable, "master", self._name, "up")
            _ip("-n", space, "addr", "add", f"{host}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def _space(self, number: int) -> str:
        return f"{self._name}n{number}"


def _ip(*arguments: str) -> None:
    done = subprocess.run([str(find_ip()), *arguments], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        said = done.stderr.strip() or f"status {done.returncode}"
        raise NetworkUnavailable(f"ip {' '.join(arguments)} failed: {said}; network namespaces need root")


def _sweep() -> None:
    """Remove the namespaces of processes that were killed. Their process ID is in the name."""
    for space in _NAMESPACES.glob(f"{_PREFIX}*-*n*") if _NAMESPACES.is_dir() else ():
        owner, _, rest = space.name.removeprefix(_PREFIX).partition("-")
        if not owner.isdigit() or Path(f"/proc/{owner}").exists():
            continue
        for leftover in (("netns", "del", space.name), ("link", "del", f"{_PREFIX}{owner}-{rest.partition('n')[0]}")):
            with contextlib.suppress(NetworkUnavailable):  # somebody else was faster
                _ip(*leftover)
