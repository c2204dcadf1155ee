"""What `latchwork executor run --probe-port` answers: health of a runner, and its counts for Prometheus. Read only."""

from __future__ import annotations

import json
from http import HTTPStatus

from latchwork.executor import Runner

#: Counts since the start, as Prometheus wants them.
_COUNTS = {
    "taken": "Tasks taken.",
    "done": "Tasks that ended, well or not, and whose outcome is stored.",
    "released": "Tasks given back.",
    "buried": "Tasks that became dead letters.",
    "lost": "Tasks whose claim was lost while they ran.",
}


def answer(runner: Runner, path: str) -> tuple[int, str, bytes]:
    """Status, content type and body for a path."""
    if path in {"/healthz", "/readyz"}:
        health, stats = runner.health(), runner.stats()
        body = {
            "ok": health.ok and not (path == "/readyz" and health.is_draining),
            "reasons": [*health.reasons, *(["it drains"] if path == "/readyz" and health.is_draining else [])],
            "runner": runner.node_id,
            "session_remaining_s": round(health.session_remaining_s, 3),
            "is_draining": health.is_draining,
            "slots": stats.slots,
            "running": stats.running,
            "stuck": list(stats.stuck),
        }
        status = HTTPStatus.OK if body["ok"] else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "application/json", json.dumps(body).encode()
    if path == "/metrics":
        return HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", _metrics(runner).encode()
    return HTTPStatus.NOT_FOUND, "text/plain", b"there are /healthz, /readyz and /metrics\n"


def _metrics(runner: Runner) -> str:
    stats = runner.stats()
    lines = []
    for name, about in _COUNTS.items():
        lines += _metric(f"latchwork_executor_{name}_total", "counter", about, getattr(stats, name))
    lines += _metric("latchwork_executor_slots", "gauge", "Tasks at a time.", stats.slots)
    lines += _metric("latchwork_executor_running", "gauge", "Tasks that run now.", stats.running)
    about = "Tasks that were told to stop, and go on."
    lines += _metric("latchwork_executor_stuck", "gauge", about, len(stats.stuck))
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, about: str, value: int) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", f"{name} {value}"]
