"""Serves an app on a port from a thread."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from latchwork.errors import LatchworkError
from latchwork_workflows.web.connections import ConnectionFactory, ConnectionLimits

_START_S = 30.0
_STOP_S = 5.0


class HttpServer:
    """Serves an app until it is closed. Use it from one thread.

    Args:
        app: The app to serve.
        host: The name or address to bind.
        port: The port. 0 selects a free one.
        bound_socket: A socket from ``bind_socket`` that was bound before the app existed. The server closes it.
        trusted_proxies: Addresses and networks whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are trusted. Default
            none, because any client can send them.
        limits: Limits for connections.
        tls: The context from ``load_tls_context``, for HTTPS. None: plain HTTP.
    Raises:
        LatchworkError: The address cannot be bound.
    """

    def __init__(
        self,
        app: FastAPI,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        bound_socket: socket.socket | None = None,
        trusted_proxies: Sequence[str] = (),
        limits: ConnectionLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._app = app
        self._socket = bind_socket(host, port) if bound_socket is None else bound_socket
        self.host, self.port = self._socket.getsockname()[:2]
        self._scheme = "http" if tls is None else "https"
        limits = limits or ConnectionLimits()
        limits.prepare(self._socket)
        config = uvicorn.Config(
            app,
            loop="asyncio",  # uvloop reads the first bytes of a handshake before `start_tls` can
            http=ConnectionFactory(limits, tls),  # type: ignore[arg-type]
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
            lifespan="off",
            ws="none",
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=list(trusted_proxies),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="latchwork-http", daemon=True)
        self._failed: BaseException | None = None
        self._ended = threading.Event()

    @property
    def url(self) -> str:
        """The URL for a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)  # noqa: S104 - only compared
        return f"{self._scheme}://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.port}"

    def start(self) -> None:
        """Start to answer requests, including those of connections that are already waiting."""
        self._thread.start()

    def close(self) -> None:
        """Stop the server. Live streams end, and open requests get some seconds to complete. Idempotent."""
        live = getattr(self._app.state.site, "live", None)
        if live is not None:
            live.close()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._ended.set()


def load_tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context of a server: TLS 1.2 or later, with a certificate chain and its key.

    Args:
        certificate: PEM file with the certificate, followed by its intermediate certificates.
        key: PEM file with the private key, without a passphrase.
    Raises:
        LatchworkError: A file is missing, is not PEM or needs a passphrase, or the key does not match the certificate.
    """

    def no_passphrase() -> str:
        raise LatchworkError(f"the key {key} has a passphrase; give a key without one, readable for this user alone")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    for each in (certificate, key):
        if not each.is_file():
            raise LatchworkError(f"there is no file {each}; give the PEM files of certificate and key")
    try:
        context.load_cert_chain(certificate, key, no_passphrase)
    except ssl.SSLError as error:
        why = error.reason or str(error)
        raise LatchworkError(f"{certificate} and {key} are not a certificate and its key in PEM: {why}") from None
    except OSError as error:
        raise LatchworkError(f"cannot read {error.filename or certificate}: {error.strerror}") from None
    return context


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind a socket to an address. Connections wait until a server accepts them.

    Raises:
        LatchworkError: The address cannot be bound.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(found[0], socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(found[4])
        sock.listen(128)
    except OSError as error:
        raise LatchworkError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from None
    return sock
