"""Real etcd and ZooKeeper servers for tests: started as ordinary processes on free ports of 127.0.0.1.

    with EtcdServer(version="3.5") as server:
        store = latchwork.connect(server.url("/test"))

Each server has its own data directory, keeps ports and data over `kill()` and `restart()`, and dies with the process
that started it. Elections are fast (50 ms heartbeats, 100 ms ticks), so that sessions of one second are granted;
everything that bears on durability is as in production. Linux only.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from latchwork_testbed.binaries import (
    ETCD_VERSIONS,
    ServerMissing,
    find_etcd,
    find_java,
    find_zookeeper_classpath,
)
from latchwork_testbed.links import Links, NamedLinks, SharedLinks
from latchwork_testbed.network import Network
from latchwork_testbed.server import Launcher, Server, ServerFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = [
    "ETCD_VERSIONS",
    "EtcdCluster",
    "EtcdServer",
    "EtcdTls",
    "Launcher",
    "Server",
    "ServerFailed",
    "ServerMissing",
    "Tls",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]

_PROBE_TIMEOUT_S = 1.0
_LEADER_INTERVAL_S = 0.05
_ZOOKEEPER_CONFIG = {
    "tickTime": "100",
    "minSessionTimeout": "500",
    "maxSessionTimeout": "60000",
    "initLimit": "100",
    "syncLimit": "50",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
}
# A short-lived JVM on a small machine: compile little, collect in one thread.
_JVM_ARGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false")


@dataclass(frozen=True)
class Tls:
    """Certificates that a server shows its clients, and whether it asks them for theirs.

    All files are PEM; ZooKeeper wants the key as PKCS #8.
    """

    ca_file: Path
    cert_file: Path
    key_file: Path
    client_cert_auth: bool = False


#: The same by its first name.
EtcdTls = Tls


class EtcdServer(Server):
    """One etcd server of a minor version. One thread at a time.

    Args:
        version: "3.4", "3.5", or "3.6" where it was built (`scripts/build_etcd36`).
        data_dir: where its data go and stay; by default a temporary directory that `close` removes.
        tls: serve clients over TLS only.
        extra_args: more flags for etcd.
    """

    SCHEME = "etcd"
    PORTS = ("client", "peer", "metrics")

    def __init__(
        self,
        version: str = "3.5",
        *,
        data_dir: Path | None = None,
        tls: Tls | None = None,
        extra_args: Sequence[str] = (),
    ) -> None:
        super().__init__(data_dir=data_dir)
        self.version = version
        self.LABEL = f"etcd {version}"
        self._tls = tls
        self._extra_args = tuple(extra_args)
        self._cluster: Sequence[EtcdServer] = (self,)
        self._links: SharedLinks | None = None

    def is_leader(self) -> bool:
        """Whether it leads its cluster, by its own word; False when it gives none. Not over TLS."""
        try:
            status = _http(self._host, self._port("client"), "POST", "/v3/maintenance/status", body="{}")
        except OSError:
            return False
        header = status.get("header")
        return isinstance(header, dict) and status.get("leader") == header.get("member_id")

    def url(self, root: str = "/latchwork", **options: object) -> str:
        """Connection URL with this root and these query options; with TLS, `tls_ca` is set unless given."""
        if self._tls is not None:
            options.setdefault("tls_ca", self._tls.ca_file)
        return super().url(root, **options)

    def _command(self) -> list[str]:
        client = f"{'http' if self._tls is None else 'https'}://{self._host}:{self._port('client')}"
        members = ",".join(f"{member._name}={member._advertised_peer_url}" for member in self._cluster)
        flags = {
            "name": self._name,
            "data-dir": self.data_dir / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": self._peer_url,
            "initial-advertise-peer-urls": self._advertised_peer_url,
            "listen-metrics-urls": f"http://{self._host}:{self._port('metrics')}",
            "initial-cluster": members,
            "initial-cluster-token": f"latchwork-{self._cluster[0]._port('peer')}",
            "heartbeat-interval": 50,
            "election-timeout": 500,
            "logger": "zap",
            "log-outputs": "stderr",
        }
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        return [str(find_etcd(self.version)), *arguments, *self._tls_arguments(), *self._extra_args]

    def _tls_arguments(self) -> list[str]:
        if self._tls is None:
            return []
        arguments = [f"--cert-file={self._tls.cert_file}", f"--key-file={self._tls.key_file}"]
        if self._tls.client_cert_auth:
            arguments += ["--client-cert-auth", f"--trusted-ca-file={self._tls.ca_file}"]
        return arguments

    def _is_ready(self) -> bool:
        return bool(_http(self._host, self._port("metrics"), "GET", "/health").get("health") == "true")

    @property
    def _name(self) -> str:
        return f"member-{self._port('peer')}"

    @property
    def _peer_url(self) -> str:
        return f"http://{self._host}:{self._port('peer')}"

    @property
    def _advertised_peer_url(self) -> str:
        return self._peer_url if self._links is None else f"http://{self._links.endpoint(self._cluster.index(self))}"


class ZooKeeperServer(Server):
    """One ZooKeeper server. One thread at a time.

    Args:
        data_dir: where its data go and stay; by default a temporary directory that `close` removes.
        tls: serve clients over TLS; four-letter words are answered on a port of their own, in the clear.
        extra_config: more lines for zoo.cfg, replacing ours of the same name.
        jvm_args: more arguments for the Java launcher, such as `-Dzookeeper.authProvider.1=...`.
    """

    SCHEME = "zk"
    PORTS: tuple[str, ...] = ("client", "quorum", "election")
    LABEL = "ZooKeeper"

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        tls: Tls | None = None,
        extra_config: Mapping[str, str] | None = None,
        jvm_args: Sequence[str] = (),
    ) -> None:
        super().__init__(data_dir=data_dir)
        self._tls = tls
        if tls is not None:
            self.PORTS = ("secure", *self.PORTS)  # the first is what clients are given
        self._extra_config = dict(extra_config or {})
        self._jvm_args = tuple(jvm_args)
        self._ensemble: Sequence[ZooKeeperServer] = (self,)
        self._links: NamedLinks | None = None

    def url(self, root: str = "/latchwork", **options: object) -> str:
        """Connection URL with this root and these query options; with TLS, `tls_ca` is set unless given."""
        if self._tls is not None:
            options.setdefault("tls_ca", self._tls.ca_file)
        return super().url(root, **options)

    def is_leader(self) -> bool:
        """Whether it leads its ensemble, or stands alone, by its own word; False when it gives none."""
        try:
            return self.mode() in {"leader", "standalone"}
        except OSError:
            return False

    def mode(self) -> str:
        """What it says it is: leader, follower, standalone, or "" while it serves nobody.

        Raises:
            OSError: it does not answer.
        """
        for line in self.four_letter_word("srvr").splitlines():
            name, _, value = line.partition(": ")
            if name == "Mode":
                return value.strip()
        return ""

    def four_letter_word(self, word: str) -> str:
        """The server's answer to a four-letter word such as `srvr`, `cons` or `wchc`.

        Raises:
            OSError: it does not answer.
        """
        with socket.create_connection((self._host, self._port("client")), timeout=_PROBE_TIMEOUT_S) as connection:
            connection.sendall(word.encode())
            with connection.makefile("rb") as answer:
                return answer.read().decode(errors="replace")

    def _command(self) -> list[str]:
        zookeeper_data = self.data_dir / "zookeeper"
        zookeeper_data.mkdir(exist_ok=True)
        config = {
            **_ZOOKEEPER_CONFIG,
            "dataDir": str(zookeeper_data),
            "clientPort": str(self._port("client")),
            "clientPortAddress": self._host,
            **self._membership(),
            **self._tls_config(),
            **self._extra_config,
        }
        config_path = self.data_dir / "zoo.cfg"
        config_path.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        if len(self._ensemble) > 1:
            (zookeeper_data / "myid").write_text(f"{self._ensemble.index(self) + 1}\n")
        main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        java = [str(find_java()), *_JVM_ARGS, *self._named_hosts(), *self._jvm_args, "-cp"]
        java.append(find_zookeeper_classpath(tls=self._tls is not None))
        return [*java, main_class, str(config_path)]

    def _tls_config(self) -> dict[str, str]:
        if self._tls is None:
            return {}
        both = self.data_dir / "server.pem"
        both.touch(mode=0o600)
        both.write_bytes(self._tls.key_file.read_bytes() + self._tls.cert_file.read_bytes())
        return {
            "secureClientPort": str(self._port("secure")),
            "secureClientPortAddress": self._host,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(both),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(self._tls.ca_file),
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need" if self._tls.client_cert_auth else "none",
        }

    def _membership(self) -> dict[str, str]:
        if len(self._ensemble) == 1:
            return {}
        return {
            f"server.{number + 1}": f"{member._host if self._links is None else self._links.name(number)}"
            f":{member._port('quorum')}:{member._port('election')}"
            for number, member in enumerate(self._ensemble)
        }

    def _named_hosts(self) -> list[str]:
        """What lets this member alone find the others where the proxies are."""
        if self._links is None:
            return []
        path = self.data_dir / "hosts"
        path.write_text(self._links.hosts_file(self._ensemble.index(self)))
        return [f"-Djdk.net.hosts.file={path}"]

    def _is_ready(self) -> bool:
        return bool(self.mode())


_Member = TypeVar("_Member", EtcdServer, ZooKeeperServer)
#: Whether links between members can be cut, and how: True is by network namespaces.
NetworkForm = bool | Literal["proxies"]


class _Group(Launcher, Generic[_Member]):
    """Servers that elect a leader among themselves; `members` can be killed, paused and restarted one by one.

    `start` starts those that do not run.
    """

    members: list[_Member]
    _network: Network | Links | None = None

    def _assemble(self, members: list[_Member], network: NetworkForm) -> None:
        self.members = members
        if network == "proxies":
            self._network = self._make_links()
            for member in members:
                member._pin_ports()  # proxies lead to them
        elif network:
            self._network = made = Network(len(members))
            for number, member in enumerate(members):
                member._host, member._enter = made.hosts[number], made.enter(number)

    @abstractmethod
    def _make_links(self) -> Links:
        """Proxies in the links between the members, who are told of them."""

    @property
    def network(self) -> Network | Links:
        """What the links between its members can be cut with.

        Raises:
            ServerFailed: it was not asked for.
        """
        if self._network is None:
            raise ServerFailed(f"the links of {self!r} are its own; ask for network=True, or network='proxies'")
        return self._network

    @property
    def endpoint(self) -> str:
        """Every member's `host:port`, joined by commas."""
        return ",".join(member.endpoint for member in self.members)

    @property
    def running(self) -> bool:
        """Whether every member runs."""
        return all(member.running for member in self.members)

    def leader(self, *, timeout_s: float = 10.0) -> _Member:
        """The member that says it leads; waits while there is none. A member cut off may still believe it leads.

        Raises:
            ServerFailed: no member said so within `timeout_s`.
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
        """Every member but the leader, stopped ones included.

        Raises:
            ServerFailed: as `leader`.
        """
        leader = self.leader(timeout_s=timeout_s)
        return [member for member in self.members if member is not leader]

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End every member in order and keep the data."""
        for member in self.members:
            member.stop(timeout_s=timeout_s)

    def kill(self) -> None:
        """End every member by kill -9 and keep the data."""
        for member in self.members:
            member.kill()

    def pause(self) -> None:
        """Freeze every member."""
        for member in self.members:
            member.pause()

    def resume(self) -> None:
        """Let every member go on."""
        for member in self.members:
            member.resume()

    def close(self) -> None:
        """End every member and remove its data, and the network."""
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


class EtcdCluster(_Group[EtcdServer]):
    """A cluster of etcd servers of one version. One thread at a time.

    With `network` the links between its members can be cut: True makes each a host of its own in a test network, which
    takes root; "proxies" puts proxies between them.
    """

    SCHEME = "etcd"

    def __init__(
        self, size: int = 3, *, version: str = "3.5", extra_args: Sequence[str] = (), network: NetworkForm = False
    ) -> None:
        self._assemble([EtcdServer(version, extra_args=extra_args) for _ in range(size)], network)
        for member in self.members:
            member._cluster = self.members

    def _make_links(self) -> Links:
        def pid_of(number: int) -> int | None:
            member = self.members[number]
            return member.pid if member.running else None

        links = SharedLinks([member._port("peer") for member in self.members], pid_of)
        for member in self.members:
            member._links = links
        return links


class ZooKeeperEnsemble(_Group[ZooKeeperServer]):
    """An ensemble of ZooKeeper servers. One thread at a time.

    With `network` the links between its members can be cut: True makes each a host of its own in a test network, which
    takes root; "proxies" puts proxies between them.
    """

    SCHEME = "zk"

    def __init__(
        self,
        size: int = 3,
        *,
        extra_config: Mapping[str, str] | None = None,
        jvm_args: Sequence[str] = (),
        network: NetworkForm = False,
    ) -> None:
        members = [ZooKeeperServer(extra_config=extra_config, jvm_args=jvm_args) for _ in range(size)]
        self._assemble(members, network)
        for member in self.members:
            member._ensemble = self.members

    def _make_links(self) -> Links:
        links = NamedLinks([(member._port("quorum"), member._port("election")) for member in self.members])
        for member in self.members:
            member._links = links
        return links


def _http(host: str, port: int, method: str, path: str, body: str | None = None) -> dict[str, object]:
    """One request, answered in JSON.

    Raises:
        OSError: no connection, no answer, or none that is JSON.
    """
    connection = http.client.HTTPConnection(host, port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request(method, path, body=body)
        answer = json.loads(connection.getresponse().read())
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{host}:{port} gave no JSON for {path}: {error}") from error
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}
