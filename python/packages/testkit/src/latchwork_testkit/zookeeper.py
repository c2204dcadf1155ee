"""Real ZooKeeper servers for tests, single ones or an ensemble. Import them from `servers.py`."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from latchwork_testkit.binaries import ZOOKEEPER_VERSION, find_java, find_zookeeper_classpath
from latchwork_testkit.group import Group, NetworkOption
from latchwork_testkit.links import HostsFileLinks, ProxyLinks
from latchwork_testkit.server import Server, Tls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_PROBE_TIMEOUT_S = 1.0
_ZOOKEEPER_CONFIG = {
    "tickTime": "100",
    "minSessionTimeout": "500",
    "maxSessionTimeout": "60000",
    "initLimit": "100",
    "syncLimit": "50",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
    "autopurge.snapRetainCount": "3",
    "autopurge.purgeInterval": "1",
}
# A short-lived JVM on a small machine: compile little, collect in one thread. A server keeps its last 500 transactions
# in memory, whatever is deleted meanwhile: with 256 MB those of storms with values of 1 MB stopped answering.
_JVM_ARGS = ("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false")


class ZooKeeperServer(Server):
    """A ZooKeeper server. Not thread-safe.

    Args:
        version: "3.8", or "3.9" if it was installed (`scripts/install_zookeeper39`).
        data_dir: Directory of its data, which is kept. None uses a temporary directory that `close` removes.
        tls: Certificates to serve clients over TLS. Four-letter commands then have their own port without TLS.
        extra_config: Additional settings of zoo.cfg. They replace the default settings of the same name.
        jvm_args: Additional arguments for Java, such as `-Dzookeeper.authProvider.1=...`.
    """

    SCHEME = "zk"
    PORTS: tuple[str, ...] = ("client", "quorum", "election")

    def __init__(
        self,
        version: str = ZOOKEEPER_VERSION,
        *,
        data_dir: Path | None = None,
        tls: Tls | None = None,
        extra_config: Mapping[str, str] | None = None,
        jvm_args: Sequence[str] = (),
    ) -> None:
        super().__init__(data_dir=data_dir, tls=tls)
        self.version = version
        self.LABEL = f"ZooKeeper {version}"
        if tls is not None:
            self.PORTS = ("secure", *self.PORTS)  # the first port is the one for clients
        self._extra_config = dict(extra_config or {})
        self._jvm_args = tuple(jvm_args)
        self._ensemble: Sequence[ZooKeeperServer] = (self,)
        self._links: HostsFileLinks | None = None

    def is_leader(self) -> bool:
        """Return whether the server reports that it leads its ensemble, or is a single server. False if it does not
        answer.
        """
        try:
            return self.mode() in {"leader", "standalone"}
        except OSError:
            return False

    def mode(self) -> str:
        """Return the mode that the server reports: leader, follower or standalone. Empty while it does not serve
        clients.

        Raises:
            OSError: The server does not answer.
        """
        for line in self.send_four_letter_word("srvr").splitlines():
            name, _, value = line.partition(": ")
            if name == "Mode":
                return value.strip()
        return ""

    def send_four_letter_word(self, command: str) -> str:
        """Return the server's answer to a four-letter command such as `srvr`, `cons` or `wchc`.

        Raises:
            OSError: The server does not answer.
        """
        with socket.create_connection((self._host, self._port("client")), timeout=_PROBE_TIMEOUT_S) as connection:
            connection.sendall(command.encode())
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
            **self._ensemble_config(),
            **self._tls_config(),
            **self._extra_config,
        }
        config_path = self.data_dir / "zoo.cfg"
        config_path.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        if len(self._ensemble) > 1:
            (zookeeper_data / "myid").write_text(f"{self._ensemble.index(self) + 1}\n")
        main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        java = [str(find_java()), *_JVM_ARGS, *self._hosts_file_arguments(), *self._jvm_args, "-cp"]
        java.append(find_zookeeper_classpath(self.version, tls=self._tls is not None))
        return [*java, main_class, str(config_path)]

    def _tls_config(self) -> dict[str, str]:
        if self._tls is None:
            return {}
        key_and_certificate = self.data_dir / "server.pem"
        key_and_certificate.touch(mode=0o600)
        key_and_certificate.write_bytes(self._tls.key_file.read_bytes() + self._tls.cert_file.read_bytes())
        return {
            "secureClientPort": str(self._port("secure")),
            "secureClientPortAddress": self._host,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(key_and_certificate),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(self._tls.ca_file),
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need" if self._tls.client_cert_auth else "none",
        }

    def _ensemble_config(self) -> dict[str, str]:
        if len(self._ensemble) == 1:
            return {}
        return {
            f"server.{number + 1}": f"{member._host if self._links is None else self._links.host_name(number)}"
            f":{member._port('quorum')}:{member._port('election')}"
            for number, member in enumerate(self._ensemble)
        }

    def _hosts_file_arguments(self) -> list[str]:
        """Write the hosts file of the member, and return the argument that makes Java use it. Empty without proxies."""
        if self._links is None:
            return []
        path = self.data_dir / "hosts"
        path.write_text(self._links.hosts_file(self._ensemble.index(self)))
        return [f"-Djdk.net.hosts.file={path}"]

    def _is_ready(self) -> bool:
        return bool(self.mode())


class ZooKeeperEnsemble(Group[ZooKeeperServer]):
    """An ensemble of ZooKeeper servers. Not thread-safe.

    Args:
        size: Number of members.
        version: "3.8", or "3.9" if it was installed.
        extra_config: Additional settings of zoo.cfg for each member.
        jvm_args: Additional arguments for Java.
        network: How tests can cut the links between members. True runs each member on its own host of a test network,
            which needs root. "proxies" puts proxies into the links. False means that they cannot.
    """

    SCHEME = "zk"

    def __init__(
        self,
        size: int = 3,
        *,
        version: str = ZOOKEEPER_VERSION,
        extra_config: Mapping[str, str] | None = None,
        jvm_args: Sequence[str] = (),
        network: NetworkOption = False,
    ) -> None:
        members = [ZooKeeperServer(version, extra_config=extra_config, jvm_args=jvm_args) for _ in range(size)]
        self._set_members(members, network)
        for member in self.members:
            member._ensemble = self.members

    def _make_links(self) -> ProxyLinks:
        links = HostsFileLinks([(member._port("quorum"), member._port("election")) for member in self.members])
        for member in self.members:
            member._links = links
        return links
