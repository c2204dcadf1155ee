"""The HTTP server of `--probe-port`: `/healthz`, `/readyz`, and `/metrics` for Prometheus. Read only."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any, Protocol

import typer

from latchwork._base.text import utc_text
from latchwork.cli.outcome import UsageError
from latchwork.errors import BackendNotInstalled
from latchwork.jobs import JobManager, JobStats, Observer
from latchwork.store import StoreObserver
from latchwork.tasks.node import Node, NodeHealth

log = logging.getLogger(__name__)

_CLIENT_TIMEOUT_S = 5.0
Answer = Callable[[str], tuple[int, str, bytes]]
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
UNKNOWN_PATH = (HTTPStatus.NOT_FOUND, "text/plain", b"there are /healthz, /readyz and /metrics\n")
_NO_METRICS = 'no metrics: prometheus-client is not installed here; run: pip install "latchwork[metrics]"\n'


def create_metrics_observers() -> tuple[list[Observer], list[StoreObserver]]:
    """Create the observers that count the metrics of a node and its store.

    Returns:
        The observers of the node and of the store. Both lists are empty if a library is missing, which is logged as a
            warning.
    """
    try:
        from latchwork.jobs.metrics import PrometheusMetrics
        from latchwork.store.observe.metrics import StoreMetrics
    except BackendNotInstalled as error:
        log.warning("/metrics answers 501: %s", error)
        return [], []
    return [PrometheusMetrics()], [StoreMetrics()]


#: The counters of a worker, by their names in its statistics.
_COUNTERS = {
    "taken": "Tasks taken.",
    "done": "Tasks that have ended and whose outcome is stored.",
    "released": "Tasks that were released.",
    "dead_lettered": "Tasks that became dead letters.",
    "lost": "Tasks whose claim was lost while they ran.",
}

ProbePort = Annotated[
    int | None,
    typer.Option(
        "--probe-port",
        min=0,
        max=65535,
        show_default=False,
        help="Serve /healthz, /readyz and /metrics on this port; 0 picks one.  [default: none]",
    ),
]
ProbeHost = Annotated[
    str, typer.Option("--probe-host", metavar="HOST", help="The address of --probe-port; 0.0.0.0 is all addresses.")
]


class Probed(Protocol):
    """A node that reports its health."""

    def health(self) -> NodeHealth:
        """Return whether the node can do its work."""
        ...


def create_store_observers(port: int | None) -> list[StoreObserver]:
    """Create the observers that record a store's operations as Prometheus metrics.

    Args:
        port: The port that serves the metrics. None: return an empty list.
    """
    return [] if port is None else create_metrics_observers()[1]


@contextmanager
def serve_worker(
    system: str, node: Probed, host: str, port: int | None, *, name: str | None = None
) -> Iterator[int | None]:
    """Return a context manager that serves the health and metrics of a worker over HTTP.

    Args:
        system: The system of the worker; its metrics are named ``latchwork_<system>_...``.
        node: The worker. A ``Node`` also has counters of its tasks.
        host: The address to listen on.
        port: The port; 0 picks one, None serves nothing.
        name: The name of the executor or of the plans that the worker belongs to, which is a label of its metrics.
            None: no label.
    Yields:
        The port; None without one.
    Raises:
        UsageError: The port is not available.
    """
    with serve_probes(system, host, port, lambda path: answer_worker_request(system, node, path, name)) as served_at:
        yield served_at


def answer_worker_request(system: str, node: Probed, path: str, name: str | None = None) -> tuple[int, str, bytes]:
    """Return the response of a worker to an HTTP request: status, content type and body.

    Args:
        system: The system of the worker.
        node: The worker.
        path: Path of the request.
        name: A label of its metrics; None for no label.
    """
    if path in {"/healthz", "/readyz"}:
        return _answer_health(node, is_readiness=path == "/readyz")
    if path == "/metrics":
        return (
            HTTPStatus.OK,
            METRICS_TYPE,
            (_format_worker_metrics(system, node, name) + format_process_metrics()).encode(),
        )
    return UNKNOWN_PATH


def format_health(body: Mapping[str, Any]) -> tuple[int, str, bytes]:
    """Return the HTTP response with a health document: status, content type and body. The status is 503 if its ``ok``
    is false.
    """
    status = HTTPStatus.OK if body["ok"] else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "application/json", json.dumps(body).encode()


def format_metric(name: str, kind: str, about: str, value: float, labels: str = "") -> str:
    """Format one metric in the text format of Prometheus.

    Args:
        name: Name of the metric.
        kind: Its type, such as ``gauge``.
        about: Its description.
        value: Its value.
        labels: Its labels in braces; empty for none.
    """
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n{name}{labels} {value}\n"


def format_process_metrics() -> str:
    """Format all Prometheus metrics of this process as text. Return "" if the Prometheus library is missing."""
    try:
        from prometheus_client import generate_latest
    except ImportError:
        return ""
    return generate_latest().decode()


def _answer_health(node: Probed, *, is_readiness: bool) -> tuple[int, str, bytes]:
    health = node.health()
    is_refusing = is_readiness and health.is_draining
    body: dict[str, Any] = {
        "ok": health.ok and not is_refusing,
        "reasons": [*health.reasons, *(["it drains"] if is_refusing else [])],
        "session_remaining_s": round(health.session_remaining_s, 3),
        "is_draining": health.is_draining,
    }
    if isinstance(node, Node):
        stats = node.stats()
        body |= {"worker": stats.node_id, "slots": stats.slots, "running": stats.running, "stuck": list(stats.stuck)}
    return format_health(body)


def _format_worker_metrics(system: str, node: Probed, name: str | None) -> str:
    prefix, health = f"latchwork_{system}", node.health()
    labels = "" if name is None else f'{{name="{name}"}}'  # a key has no character to escape
    found = [
        ("healthy", "gauge", "1 while the node can do its work.", int(health.ok)),
        ("draining", "gauge", "1 while the node drains.", int(health.is_draining)),
    ]
    if isinstance(node, Node):
        stats = node.stats()
        found += [(f"{each}_total", "counter", about, getattr(stats, each)) for each, about in _COUNTERS.items()]
        found += [
            ("slots", "gauge", "Slots.", stats.slots),
            ("running", "gauge", "Tasks that are running.", stats.running),
            ("stuck", "gauge", "Tasks that were asked to stop and are still running.", len(stats.stuck)),
        ]
    return "".join(format_metric(f"{prefix}_{each}", kind, about, value, labels) for each, kind, about, value in found)


@contextmanager
def serve_node(
    node: JobManager, host: str, port: int | None, *, unready_after: int | None = None
) -> Iterator[int | None]:
    """Return a context manager that serves the health and metrics of a job node over HTTP.

    Args:
        node: The node.
        host: The address to listen on.
        port: The port; 0 picks one, None serves nothing.
        unready_after: `/readyz` fails after this many consecutive failures of one item. None: never.
    Yields:
        The port; None without one.
    Raises:
        UsageError: The port is not available.
    """
    what = f"node {node.node_id}"
    with serve_probes(what, host, port, lambda path: answer_node_request(node, path, unready_after)) as served_at:
        yield served_at


@contextmanager
def serve_probes(what: str, host: str, port: int | None, answer_to: Answer) -> Iterator[int | None]:
    """Return a context manager that answers HTTP requests for health and metrics.

    Args:
        what: The name of the server, for the log.
        host: The address to listen on.
        port: The port; 0 picks one, None serves nothing.
        answer_to: Called with a path; returns status, content type and body.
    Yields:
        The port; None without one.
    Raises:
        UsageError: The port is not available.
    """
    if port is None:
        yield None
        return
    try:
        server = ThreadingHTTPServer((host, port), _create_handler(answer_to))
    except OSError as error:
        raise UsageError(f"port {port} of {host} cannot be used: {error}; give another --probe-port") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name=f"latchwork-probe of {what}", daemon=True)
    thread.start()
    log.info("%s answers probes at http://%s:%d/healthz", what, host, server.server_port)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer_node_request(node: JobManager, path: str, unready_after: int | None = None) -> tuple[int, str, bytes]:
    """Return the response of a job node to an HTTP request: status, content type and body.

    Args:
        node: The node.
        path: Path of the request.
        unready_after: `/readyz` fails after this many consecutive failures of one item. None: never.
    """
    if path in {"/healthz", "/readyz"}:
        body = _get_health(node)
        if path == "/readyz" and unready_after is not None:
            failing = [
                f"job {job} fails, {each.consecutive_failures} runs in a row: {each.last_error}"
                for job, each in node.stats().jobs.items()
                if each.consecutive_failures >= unready_after
            ]
            body = {**body, "ok": body["ok"] and not failing, "reasons": [*body["reasons"], *failing]}
        return format_health(body)
    if path == "/metrics":
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
        except ImportError:
            return HTTPStatus.NOT_IMPLEMENTED, "text/plain", _NO_METRICS.encode()
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest()
    return UNKNOWN_PATH


def _get_health(node: JobManager) -> dict[str, Any]:
    health = node.health()
    return {
        "ok": health.ok,
        "reasons": list(health.reasons),
        "degraded": list(health.degraded),
        "node": node.node_id,
        "session": health.session,
        "session_remaining_s": round(health.session_remaining_s, 3),
        "lock_margin_s": None if health.lock_margin_s is None else round(health.lock_margin_s, 3),
        "jobs": {job: _get_stats(each) for job, each in node.stats().jobs.items()},
    }


def _get_stats(stats: JobStats) -> dict[str, Any]:
    moments = {"last_start": stats.last_start_s, "last_success": stats.last_success_s,
               "last_failure": stats.last_failure_s, "next_start": stats.next_start_s}  # fmt: skip
    return {
        "failing_items": stats.failing_items,
        "consecutive_failures": stats.consecutive_failures,
        "last_error": stats.last_error,
        **{name: None if at_s is None else utc_text(at_s) for name, at_s in moments.items()},
    }


def _create_handler(answer_to: Answer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_TIMEOUT_S

        def do_GET(self) -> None:
            """Answer one request."""
            status, kind, body = answer_to(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
            """Write to our log, at debug level."""
            log.debug(format, *args)

    return Handler
