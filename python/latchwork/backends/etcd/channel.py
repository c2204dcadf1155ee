"""The gRPC channel to a cluster: the selection of members, the options, and the available calls."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import grpc

from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.url import StoreURL
from latchwork.errors import InvalidURL

Hosts = list[tuple[str, int]]

#: gRPC reports the state of a channel from a separate thread, which takes milliseconds.
_STATE_S = 0.5

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A ping after 5.5 s in which nothing came, 2 s for its answer: a silent server is left after 7.5 s at the latest.
    # etcd closes the connection at the third ping that it did not want: one that follows another by less than 5 s (ours
    # follow the *answer* to the one before), or one while no call is under way. So an idle connection is not asked; its
    # next call is, and with a watch, a session or a writer's lease there always is one soon.
    ("grpc.keepalive_time_ms", 5500),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnects in under a second once the server is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A write is sent at most once: what to do next is decided in writing/writes.py.
    ("grpc.enable_retries", 0),
    # A channel that replaces another one gets a new connection. shared_connections.py decides which stores share one.
    ("grpc.use_local_subchannel_pool", 1),
)
_METHODS: dict[str, tuple[str, Any]] = {
    # Most of what is sent: their answers stay as they came until it is known who reads them.
    "Range": ("KV", None),
    "Txn": ("KV", None),
    "LeaseGrant": ("Lease", pb.LeaseGrantResponse),
    "LeaseRevoke": ("Lease", pb.LeaseRevokeResponse),
    # A stream on the server, used as a call of one request and one answer: no thread, no state.
    "LeaseKeepAlive": ("Lease", pb.LeaseKeepAliveResponse),
    "Authenticate": ("Auth", pb.AuthenticateResponse),
    "Status": ("Maintenance", pb.StatusResponse),
}


class Channel:
    """A gRPC channel to the members of a cluster, and the calls that it offers.

    Args:
        channel: The gRPC channel.
        is_ours: Whether we opened it. Only then it may be closed.

    Attributes:
        close: Closes the channel if we opened it.
        calls: The calls by method. Requests are messages or bytes. The answers to Range and Txn are bytes.
        watch: Opens the stream of watch requests and answers.
    """

    def __init__(self, channel: grpc.Channel, *, is_ours: bool) -> None:
        self.close: Callable[[], None] = channel.close if is_ours else lambda: None
        self._channel = channel
        self.calls: dict[str, Any] = {
            name: channel.unary_unary(
                f"/etcdserverpb.{service}/{name}",
                request_serializer=_encode_request,
                response_deserializer=None if response is None else response.FromString,
            )
            for name, (service, response) in _METHODS.items()
        }
        self.watch: Any = channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )

    def is_connected(self) -> bool:
        """Return whether there is a connection to a server of the cluster, with its TLS handshake completed.

        May block for a moment, because gRPC reports the state in another thread.
        """
        states: SimpleQueue[grpc.ChannelConnectivity] = SimpleQueue()
        self._channel.subscribe(states.put)
        try:
            return states.get(timeout=_STATE_S) is grpc.ChannelConnectivity.READY
        except Empty:
            return False
        finally:
            self._channel.unsubscribe(states.put)

    def close_in_thread(self) -> None:
        """Make ``close`` return at once and work in a thread, because gRPC may hold a lock of this channel forever."""
        close = self.close
        self.close = lambda: Thread(target=close, name="grpc-channel-left", daemon=True).start()


def open_channel(hosts: Hosts, secured: grpc.ChannelCredentials | None, connect_s: float) -> Channel:
    """Open a channel to the first member of the cluster that can be reached.

    With TLS it only uses the first host, because gRPC compares all certificates of a channel with one name.

    Args:
        hosts: The hosts and ports of the members.
        secured: The TLS credentials, or None.
        connect_s: Seconds for each attempt to connect to a member.
    """
    target, extra = _target_of_hosts(hosts if secured is None else hosts[:1], secure=secured is not None)
    options = (*_OPTIONS, *extra, ("grpc.min_reconnect_backoff_ms", round(connect_s * 1000)))
    if secured is None:
        return Channel(grpc.insecure_channel(target, options), is_ours=True)
    return Channel(grpc.secure_channel(target, secured, options), is_ours=True)


def _encode_request(request: Any) -> bytes:
    """Return a request, which is a message or already encoded, as bytes."""
    encoded: bytes = request if isinstance(request, bytes) else request.SerializeToString()
    return encoded


def read_tls_files(url: StoreURL) -> dict[str, bytes]:
    """Return the contents of the TLS files in the URL, by the name of the option.

    Raises:
        InvalidURL: Only one file of a key pair is given, or a file cannot be read.
    """
    options = url.options
    files = {name: Path(options[name]) for name in ("tls_ca", "tls_cert", "tls_key") if name in options}
    if ("tls_cert" in files) != ("tls_key" in files):
        raise InvalidURL("tls_cert and tls_key must be given together; give both or neither")
    try:
        return {name: path.read_bytes() for name, path in files.items()}
    except OSError as error:
        raise InvalidURL(f"{error.filename!r} cannot be read ({error.strerror}); name a readable PEM file") from error


def create_credentials(tls: dict[str, bytes]) -> grpc.ChannelCredentials | None:
    """Return the gRPC credentials for the contents of TLS files, or None if there are none."""
    return grpc.ssl_channel_credentials(tls.get("tls_ca"), tls.get("tls_key"), tls.get("tls_cert")) if tls else None


def _target_of_hosts(hosts: list[tuple[str, int]], *, secure: bool) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """Return gRPC's target name for the hosts, and the options of the channel for it.

    With TLS only the first host is used.
    """
    if len(hosts) == 1 and not _is_ip(hosts[0][0]):
        return f"dns:///{hosts[0][0]}:{hosts[0][1]}", ()
    addresses = [address for host in hosts for address in _resolve(*host)]
    family = "ipv4" if any(kind == "ipv4" for kind, _ in addresses) else "ipv6"
    target = f"{family}:" + ",".join(address for kind, address in addresses if kind == family)
    # An address list has no host name to compare with the certificate.
    return target, (("grpc.ssl_target_name_override", hosts[0][0]),) if secure else ()


def _resolve(host: str, port: int) -> list[tuple[str, str]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # the latter for a name that no DNS message can hold
        return []
    kinds = {socket.AF_INET: "ipv4", socket.AF_INET6: "ipv6"}
    named = [(kinds.get(family, ""), str(address[0])) for family, _, _, _, address in found]
    return [(kind, f"[{address}]:{port}" if kind == "ipv6" else f"{address}:{port}") for kind, address in named if kind]


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
