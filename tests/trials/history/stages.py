"""Where histories are recorded: each backend with its clients, and the faults that can befall it."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from latchwork_testbed.servers import EtcdCluster, EtcdServer, ZooKeeperEnsemble, ZooKeeperServer
from trials.history.client import new_memory
from trials.history.proxy import Proxies
from trials.history.witness import Witness
from trials.history.worker import LocalClient, Nursery, RemoteClient

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    import latchwork
    from trials.judges.linearizable.calls import Call

CLIENTS = 8
_NUMBERS = 10_000_000  # for each client
_ELECTION_S = 30.0


class Fault(NamedTuple):
    """Something that goes wrong: how often, and what to do; it says whether there was anything to hurt."""

    name: str
    weight: int
    inflict: Callable[[random.Random], bool]


class Stage:
    """A backend with eight clients. One thread at a time.

    Attributes:
        clients: those that run now.
        finished: calls and problems of clients that have died.
        pause_s: between two faults, at least and at most.
        outage_s: how long a fault lasts, at least and at most.
        patience_s, think_s: of the clients; see ``Recorder`` and ``Workload``.
    """

    pause_s = (0.05, 0.4)
    outage_s = (0.1, 0.6)
    patience_s: float | None = None
    think_s = 0.0
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def __init__(self, directory: Path, *, wrap: Callable[[latchwork.Store], Any] = lambda store: store) -> None:
        self.directory = directory
        self._wrap = wrap
        self.clients: list[LocalClient | RemoteClient] = []
        self.finished: tuple[list[Call], list[str]] = ([], [])
        self.faults: list[Fault] = []
        self._nursery: Nursery | None = None
        self._processes: dict[int, list[RemoteClient]] = {}
        self._shared = new_memory()
        self._started = 0

    def url(self, client: int | None) -> str:
        """How a client reaches the store; None: straight, whatever goes wrong."""
        raise NotImplementedError

    def open(self) -> None:
        """Start everything, clients included."""
        raise NotImplementedError

    def condition(self) -> str:
        """For people, when the store gives no answer although every fault is over."""
        return ""

    def spoilt(self) -> str:
        """What raw clients saw the servers lose by a fault of their own; empty: nothing."""
        return ""

    def close(self) -> None:
        for client in self.clients:
            client.close()
        if self._nursery is not None:
            self._nursery.close()

    def _add_local(self, link: int) -> None:
        self.clients.append(LocalClient(self._spec(link), self._shared, self._wrap))

    def _add_process(self, links: list[int]) -> list[RemoteClient]:
        if self._nursery is None:
            self._nursery = Nursery()
        pid, clients = self._nursery.fork([self._spec(link) for link in links])
        self._processes[pid] = clients
        self.clients += clients
        return clients

    def _spec(self, link: int) -> dict[str, Any]:
        self._started += 1
        return {
            "name": f"c{link}.{self._started}",
            "number": self._started * _NUMBERS,
            "url": self.url(link),
            "options": self.options,
            "patience_s": self.patience_s,
            "think_s": self.think_s,
        }

    def _wait(self, rng: random.Random) -> None:
        time.sleep(rng.uniform(*self.outage_s))

    def _kill_a_process(self, rng: random.Random) -> bool:
        """Kill one with all its clients, and start another in its place."""
        assert self._nursery is not None
        pid = rng.choice(list(self._processes))
        dead = self._processes.pop(pid)
        moment = self._nursery.kill(pid)
        for client in dead:
            calls, problems = client.died(moment)
            self.finished[0].extend(calls)
            self.finished[1].extend(problems)
            self.clients.remove(client)
        for client in self._add_process([int(each.name[1 : each.name.index(".")]) for each in dead]):
            client.go(rng.getrandbits(32))
        return True

    def _freeze_a_process(self, rng: random.Random) -> bool:
        pid = rng.choice(list(self._processes))
        os.kill(pid, signal.SIGSTOP)
        self._wait(rng)
        os.kill(pid, signal.SIGCONT)
        return True


class MemoryStage(Stage):
    """One process; a transaction that takes its time holds everybody up, and callers give up."""

    options = {"call_timeout_s": 0.25}  # noqa: RUF012
    pause_s = (0.02, 0.2)
    outage_s = (0.03, 0.2)
    patience_s = 0.02
    think_s = 0.001

    def __init__(self, directory: Path, **more: Any) -> None:
        super().__init__(directory, **more)
        self.faults = [Fault("writer held up", 1, self._hold_up)]

    def url(self, client: int | None) -> str:
        return f"memory://history-{id(self)}/test"

    def open(self) -> None:
        for link in range(CLIENTS):
            self._add_local(link)

    def _hold_up(self, rng: random.Random) -> bool:
        pool = self.clients[0].store._core.backend._db._writer
        connection = pool.take(time.monotonic() + 5)
        self._wait(rng)
        pool.give(connection)
        return True


class SqliteStage(Stage):
    """A file, two clients in this process and six in three others, which are killed and frozen at any moment."""

    options = {"call_timeout_s": 0.4}  # noqa: RUF012
    pause_s = (0.02, 0.15)
    patience_s = 0.05
    think_s = 0.002

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._path = directory / "history.db"
        self.faults = [
            Fault("process killed", 6, self._kill_a_process),
            Fault("process frozen", 1, self._freeze_a_process),
            Fault("file locked", 4, self._lock_the_file),
        ]

    def url(self, client: int | None) -> str:
        return f"sqlite:///{self._path}?root=test"

    def open(self) -> None:
        for link in range(2):
            self._add_local(link)
        for link in range(2, CLIENTS, 2):
            self._add_process([link, link + 1])

    def _lock_the_file(self, rng: random.Random) -> bool:
        """Another program writes for longer than some callers wait."""
        connection = sqlite3.connect(self._path, timeout=5, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        self._wait(rng)
        connection.execute("ROLLBACK")
        connection.close()
        return True


class ServerStage(Stage):
    """A server, five clients in this process and three in others, each with a way of its own to the server."""

    pause_s = (0.05, 0.25)
    outage_s = (0.3, 0.7)
    think_s = 0.002
    options = {"call_timeout_s": 0.25, "session_ttl_s": 1.5, "connect_timeout_s": 20}  # noqa: RUF012

    def __init__(self, directory: Path, server: EtcdServer | ZooKeeperServer | EtcdCluster | ZooKeeperEnsemble) -> None:
        super().__init__(directory)
        self._server = server
        self._members = getattr(server, "members", [server])
        self._witness = Witness(server)
        self._proxies: Proxies | None = None
        self.faults = [
            Fault("connections cut", 4, self._cut),
            Fault("packets dropped", 4, self._drop),
            Fault("answers dropped", 4, self._drop_answers),
            Fault("requests delayed", 4, self._delay),
            Fault("server frozen", 4, self._freeze_the_server),
            Fault("server killed", 1, self._kill_the_server),
            Fault("process frozen", 2, self._freeze_a_process),
        ]

    def url(self, client: int | None) -> str:
        endpoint = self._server.endpoint
        if client is not None:
            count = len(self._members)
            endpoint = ",".join(self._proxies.endpoints[client * count : (client + 1) * count])
        return f"{self._server.SCHEME}://{endpoint}/test"

    def open(self) -> None:
        self._server.start()
        self._proxies = Proxies([member.endpoint for member in self._members] * CLIENTS)
        for link in range(5):
            self._add_local(link)
        for link in range(5, CLIENTS):
            self._add_process([link])

    def close(self) -> None:
        super().close()
        if self._proxies is not None:
            self._proxies.close()
        self._server.close()

    def condition(self) -> str:
        told = []
        for member in self._members:
            lines = member.log_path.read_text(errors="replace").splitlines()[-15:] if not member.running else []
            told.append("\n".join([repr(member), *lines]))
        return "\n".join(told)

    def spoilt(self) -> str:
        return self._witness.told()

    def _links(self, rng: random.Random) -> list[int]:
        """Everybody's, or some."""
        links = range(CLIENTS * len(self._members))
        return list(links) if rng.random() < 0.6 else rng.sample(links, rng.randint(1, len(links)))

    def _cut(self, rng: random.Random) -> bool:
        return self._proxies.cut(self._links(rng)) > 0

    def _drop(self, rng: random.Random) -> bool:
        return self._hurt(rng, lambda links: self._proxies.drop(links, "both"))

    def _drop_answers(self, rng: random.Random) -> bool:
        return self._hurt(rng, lambda links: self._proxies.drop(links, "answers"))

    def _delay(self, rng: random.Random) -> bool:
        """Requests arrive late: by then their senders may be connected anew."""
        return self._hurt(rng, lambda links: self._proxies.hold_present(links, "requests"))

    def _hurt(self, rng: random.Random, how: Callable[[list[int]], int]) -> bool:
        links = self._links(rng)
        touched = how(links)
        self._wait(rng)
        self._proxies.release(links)
        return touched > 0

    def _freeze_the_server(self, rng: random.Random) -> bool:
        self._server.pause()
        self._wait(rng)
        self._server.resume()
        return True

    def _kill_the_server(self, rng: random.Random) -> bool:
        self._witness.before_a_kill()
        self._server.kill()
        time.sleep(rng.uniform(0.0, 0.3))
        self._server.start()
        self._witness.after_the_restart()
        return True


class ClusterStage(ServerStage):
    """Three servers whose links can be cut; every client has a way of its own to each of them."""

    outage_s = (0.5, 2.5)  # an election takes its time

    def __init__(self, directory: Path, cluster: EtcdCluster | ZooKeeperEnsemble) -> None:
        super().__init__(directory, cluster)
        self._cluster = cluster
        self.faults = [
            Fault("connections cut", 2, self._cut),
            Fault("answers dropped", 2, self._drop_answers),
            Fault("requests delayed", 4, self._delay),
            Fault("leader frozen", 3, self._freeze_the_leader),
            Fault("leader killed", 2, self._kill_the_leader),
            Fault("leader cut off", 4, self._cut_off_the_leader),
            Fault("follower cut off", 3, self._cut_off_a_follower),
            Fault("process frozen", 1, self._freeze_a_process),
        ]

    def _freeze_the_leader(self, rng: random.Random) -> bool:
        leader = self._cluster.leader(timeout_s=_ELECTION_S)
        leader.pause()
        self._wait(rng)
        leader.resume()
        return True

    def _kill_the_leader(self, rng: random.Random) -> bool:
        leader = self._cluster.leader(timeout_s=_ELECTION_S)
        leader.kill()
        self._wait(rng)
        leader.start()
        return True

    def _cut_off_the_leader(self, rng: random.Random) -> bool:
        """From the other members; its clients stay connected."""
        leader = self._cluster.leader(timeout_s=_ELECTION_S)
        return self._cut_off(self._members.index(leader), rng)

    def _cut_off_a_follower(self, rng: random.Random) -> bool:
        follower = rng.choice(self._cluster.followers(timeout_s=_ELECTION_S))
        return self._cut_off(self._members.index(follower), rng)

    def _cut_off(self, number: int, rng: random.Random) -> bool:
        self._cluster.network.isolate(number)
        self._wait(rng)
        self._cluster.network.heal()
        return True


STAGES: dict[str, Callable[[Path], Stage]] = {
    "memory": MemoryStage,
    "sqlite": SqliteStage,
    "zookeeper": lambda directory: ServerStage(directory, ZooKeeperServer()),
    "etcd34": lambda directory: ServerStage(directory, EtcdServer("3.4")),
    "etcd35": lambda directory: ServerStage(directory, EtcdServer("3.5")),
}
#: As root each server is a host of its own; otherwise proxies stand in the links between them.
_LINKS = True if os.geteuid() == 0 else "proxies"
#: For the long form, on request; etcd 3.6 is what `make check-faults` has built.
ON_REQUEST: dict[str, Callable[[Path], Stage]] = {
    "etcd36": lambda directory: ServerStage(directory, EtcdServer("3.6")),
    "zookeeper-x3": lambda directory: ClusterStage(directory, ZooKeeperEnsemble(network=_LINKS)),
    "etcd34-x3": lambda directory: ClusterStage(directory, EtcdCluster(version="3.4", network=_LINKS)),
    "etcd35-x3": lambda directory: ClusterStage(directory, EtcdCluster(version="3.5", network=_LINKS)),
}
