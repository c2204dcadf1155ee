"""`latchwork run`: one node of a job cluster, in the foreground."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer

from latchwork.cli.options import Debug, Url, examples, wanted_url
from latchwork.cli.outcome import LOG_FORMAT, OK, Terminated, UsageError, debugging, reported
from latchwork.cli.probe import metrics_if_installed, serving
from latchwork.cli.target import load_jobs
from latchwork.errors import LatchworkError
from latchwork.jobs import Job, JobManager
from latchwork.store import Store, connect


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog=examples(
            "latchwork run jobs:report --url sqlite:///jobs.db --node-id n1",
            "latchwork run jobs:report --node-id n1 --probe-port 9100",
            "latchwork run jobs:all_jobs --url etcd://127.0.0.1:2379/app --node-id n2 --strategy evenly-spread",
            "LATCHWORK_URL=zk://127.0.0.1:2181/app latchwork run mypackage.jobs:make_jobs --node-id $(hostname)",
        )
    )(run)


@reported
def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:ATTRIBUTE",
            help="A Job, a list of Jobs, or a function that makes them; the current directory is importable.",
        ),
    ],
    *,
    node_id: Annotated[str, typer.Option("--node-id", help="This node's id, unique in the cluster: A-Za-z0-9._-")],
    url: Url = None,
    strategy: Annotated[
        str, typer.Option(help="How items are shared out: balanced, evenly-spread, evenly-rendezvous or rendezvous.")
    ] = "balanced",
    session_ttl_s: Annotated[
        float, typer.Option("--session-ttl-s", help="Seconds after which a node that died is given up.")
    ] = 10.0,
    lock_ttl_s: Annotated[
        float, typer.Option("--lock-ttl-s", help="Seconds for which the items of a node that died stay locked.")
    ] = 10.0,
    close_timeout_s: Annotated[
        float, typer.Option("--close-timeout-s", help="Seconds that runs get to stop when the node is closed.")
    ] = 30.0,
    probe_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /healthz, and /metrics for Prometheus, on this port; 0 picks one."),
    ] = None,
    probe_host: Annotated[str, typer.Option(help="The address to serve them on.")] = "127.0.0.1",
    debug: Debug = False,  # noqa: ARG001 - its callback has done all there is to do
) -> None:
    """Run one node of a job cluster until SIGTERM or Ctrl-C, then hand its items over and exit with 0.

    Start it several times, on one machine or many, with the same URL and different node ids: the items of each job
    are shared out over all nodes that have it, and move when a node joins, leaves or dies. What happens is logged to
    stderr.
    """
    where = wanted_url(url)
    _log_to_stderr()
    previous = signal.signal(signal.SIGTERM, _leave)
    try:
        jobs = load_jobs(target)
        observers = [] if probe_port is None else metrics_if_installed()
        with connect(where) as store:
            node = _manager(
                store,
                node_id,
                jobs,
                strategy=strategy,
                session_ttl_s=session_ttl_s,
                lock_ttl_s=lock_ttl_s,
                close_timeout_s=close_timeout_s,
                observers=observers,
            )
            with serving(node, probe_host, probe_port):
                node.run_forever()
    finally:
        signal.signal(signal.SIGTERM, previous)


def _manager(store: Store, node_id: str, jobs: Sequence[Job], **options: Any) -> JobManager:
    """The node; what it refuses is the command line's mistake."""
    try:
        return JobManager(store, node_id, jobs, **options)
    except LatchworkError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM before the node runs, or after it has closed: nothing is to be handed over."""
    raise Terminated(OK)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=LOG_FORMAT)
    logging.getLogger("latchwork").setLevel(logging.DEBUG if debugging() else logging.INFO)
