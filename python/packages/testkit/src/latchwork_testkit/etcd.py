"""Real etcd servers for tests, single ones or a cluster. Import them from `servers.py`."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING

from latchwork_testkit.binaries import find_etcd
from latchwork_testkit.group import Group, NetworkOption
from latchwork_testkit.links import ProxyLinks, SharedAddressLinks
from latchwork_testkit.server import Server, Tls

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_PROBE_TIMEOUT_S = 1.0


class EtcdServer(Server):
    """An etcd server. Not thread-safe.

    Args:
        version: "3.4", "3.5", or "3.6" if it was built (`scripts/build_etcd36`).
        data_dir: Directory of its data, which is kept. None uses a temporary directory that `close` removes.
        tls: Certificates to serve clients over TLS only.
        extra_args: Additional flags for etcd.
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
        super().__init__(data_dir=data_dir, tls=tls)
        self.version = version
        self.LABEL = f"etcd {version}"
        self._extra_args = tuple(extra_args)
        self._cluster: Sequence[EtcdServer] = (self,)
        self._links: SharedAddressLinks | None = None

    def is_leader(self) -> bool:
        """Return whether the server reports that it leads its cluster. False if it does not answer. Not for servers
        with TLS.
        """
        try:
            status = _http(self._host, self._port("client"), "POST", "/v3/maintenance/status", body="{}")
        except OSError:
            return False
        header = status.get("header")
        return isinstance(header, dict) and status.get("leader") == header.get("member_id")

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
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": "1h",
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


class EtcdCluster(Group[EtcdServer]):
    """A cluster of etcd servers of one version. Not thread-safe.

    Args:
        size: Number of members.
        version: "3.4", "3.5", or "3.6" if it was built.
        tls: Certificates of each member for its clients.
        extra_args: Additional flags for etcd.
        network: How tests can cut the links between members. True runs each member on its own host of a test network,
            which needs root. "proxies" puts proxies into the links. False means that they cannot.
    """

    SCHEME = "etcd"

    def __init__(
        self,
        size: int = 3,
        *,
        version: str = "3.5",
        tls: Sequence[Tls] = (),
        extra_args: Sequence[str] = (),
        network: NetworkOption = False,
    ) -> None:
        own: Sequence[Tls | None] = tls or [None] * size
        self._set_members([EtcdServer(version, tls=each, extra_args=extra_args) for each in own], network)
        for member in self.members:
            member._cluster = self.members

    def _make_links(self) -> ProxyLinks:
        def pid_of(number: int) -> int | None:
            member = self.members[number]
            return member.pid if member.running else None

        links = SharedAddressLinks([member._port("peer") for member in self.members], pid_of)
        for member in self.members:
            member._links = links
        return links


def _http(host: str, port: int, method: str, path: str, body: str | None = None) -> dict[str, object]:
    """Send an HTTP request and return the JSON object of the answer, or an empty dictionary for other JSON.

    Raises:
        OSError: There was no connection, no answer, or an answer that is not JSON.
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
