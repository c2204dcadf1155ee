"""`latchwork run`: one node of a job cluster, in the foreground."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from latchwork.cli.flags import add_flags, make_setting_flag, make_start_flag
from latchwork.cli.jobs import PACES, one_schedule
from latchwork.cli.options import Url, command, parse_label, require_url
from latchwork.cli.outcome import LOG_FORMAT, OK, UsageError, debugging, exit_on_sigterm
from latchwork.cli.probe import ProbeHost, ProbePort, create_metrics_observers, serve_node
from latchwork.cli.processes import create_command_job
from latchwork.cli.target import load_jobs, load_strategy
from latchwork.errors import LatchworkError
from latchwork.jobs import Job, JobManager
from latchwork.jobs.manager import StrategyOption
from latchwork.jobs.options import get_option_rows
from latchwork.jobs.settings import NodeOptions
from latchwork.store import Store, connect


@command(
    "latchwork run jobs:report --url sqlite:///jobs.db --node-id n1",
    "latchwork run jobs:report --node-id n1 --probe-port 9100",
    "latchwork run jobs:all_jobs --url etcd://127.0.0.1:2379/app --node-id n2 --strategy evenly-spread",
    "latchwork run jobs:all_jobs --node-id n3 --weight 2 --label gpu=yes --label zone=b",
    "latchwork run jobs:all_jobs --node-id n4 --strategy report=mypackage.placing:ByZone --strategy balanced",
    "latchwork run --command 'backup.sh {item}' --item a --item b --cron '0 3 * * *' --node-id n1",
    "LATCHWORK_URL=zk://127.0.0.1:2181/app latchwork run mypackage.jobs:make_jobs --node-id $(hostname)",
)
@add_flags(PACES, make_setting_flag, before="cron")
@add_flags([row for row in get_option_rows(NodeOptions) if row.flag], make_start_flag, before="probe_port")
def run(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:ATTRIBUTE",
            show_default=False,
            help="A Job, a list of Jobs, or a function that makes them; the current directory is importable. Give this "
            "or --command.",
        ),
    ] = None,
    *,
    shell_command: Annotated[
        str | None,
        typer.Option(
            "--command",
            metavar="COMMAND",
            show_default=False,
            help="Run this command instead, once per item. {item} is replaced by the item. Words are split as by a "
            "shell, but no shell runs them. Use the same command on all nodes.",
        ),
    ] = None,
    item: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ITEM",
            show_default=False,
            help="An item for --command. Repeatable.  [default: one, called main]",
        ),
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            show_default=False,
            help="The ID of the job of --command.  [default: the name of the program]",
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="How many commands of --command run at a time on this node; 0 is one per item."
        ),
    ] = 1,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            show_default=False,
            help="When --command runs: `0 3 * * *` or @daily. Use at most one of --cron, --fixed-delay-s and "
            "--fixed-rate-s.  [default: 60 s after each end]",
        ),
    ] = None,
    tz: Annotated[str, typer.Option(metavar="ZONE", help="The time zone of --cron, such as Europe/Berlin.")] = "UTC",
    node_id: Annotated[
        str,
        typer.Option(
            metavar="ID", help="The ID of this node, unique among running nodes: 1 to 120 characters of A-Za-z0-9._-"
        ),
    ],
    url: Url = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[JOB=]NAME",
            show_default=False,
            help="How items are distributed: balanced, evenly-spread, evenly-rendezvous, rendezvous, or "
            "MODULE:ATTRIBUTE for one of your own; report=rendezvous applies to one job. Repeatable. Use the same on "
            "all nodes, because the manager's applies.  [default: balanced]",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            show_default=False,
            help="A label of this node, such as gpu=yes: jobs with requires={'gpu': 'yes'} run only on nodes that have "
            "it. Repeatable.",
        ),
    ] = None,
    probe_port: ProbePort = None,
    unready_after: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            show_default=False,
            help="/readyz reports that this node is not ready after N consecutive failed runs of one item, so that a "
            "rollout stops.  [default: never]",
        ),
    ] = None,
    probe_host: ProbeHost = "127.0.0.1",
    **given: float | None,
) -> None:
    """Run one node of a job cluster until SIGTERM or Ctrl-C, then hand over its items and exit with 0.

    Start it several times, on one machine or many, with the same URL and different node IDs. The items of each job are
    distributed over all nodes that have the job, and move when a node joins, leaves or dies. Events are logged to
    stderr.
    """
    where = require_url(url)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=LOG_FORMAT)
    logging.getLogger("latchwork").setLevel(logging.DEBUG if debugging() else logging.INFO)
    with exit_on_sigterm(OK):  # before the node runs and after it has closed nothing is to be handed over
        paces = [{row.name: given.pop(row.name)} for row in PACES]
        schedule = one_schedule(*paces, {"cron": cron, "tz": tz})
        if (target is None) == (shell_command is None):
            raise UsageError("give either MODULE:ATTRIBUTE or --command")
        if shell_command is None:
            if item or job_id or schedule:
                raise UsageError(
                    "--item, --job-id, --cron, --fixed-delay-s and --fixed-rate-s can only be used with --command"
                )
            jobs = load_jobs(target or "")
        else:
            jobs = [
                create_command_job(shell_command, job_id=job_id, items=item or [], schedule=schedule, threads=threads)
            ]
        observers, of_store = ([], []) if probe_port is None else create_metrics_observers()
        with connect(where, observers=of_store) as store:
            node = _create_manager(
                store,
                node_id,
                jobs,
                strategy=_parse_strategies(strategy or []),
                labels=_labels(label or []),
                observers=observers,
                **given,
            )
            with serve_node(node, probe_host, probe_port, unready_after=unready_after):
                node.run_forever()


def _parse_strategies(given: Sequence[str]) -> dict[str, StrategyOption]:
    """Return the assignment strategy for each job ID, with ``*`` for all other jobs.

    Args:
        given: Values of the flag ``--strategy``: a name, or a job ID and a name.
    """
    found: dict[str, StrategyOption] = {}
    for text in given:
        job, _, name = text.rpartition("=")
        if (job or "*") in found:
            raise UsageError(
                f"--strategy {text}: the strategy of {f'job {job!r}' if job else 'all jobs'} is given twice"
            )
        found[job or "*"] = load_strategy(name) if ":" in name else name
    return found or {"*": "balanced"}


def _labels(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, value = parse_label(text)
        if name in found:
            raise UsageError(f"--label {name} is given twice; a node has one value of each label")
        found[name] = value
    return found


def _create_manager(store: Store, node_id: str, jobs: Sequence[Job], **options: Any) -> JobManager:
    """Create a job node. Its errors are reported as mistakes in the command line.

    Args:
        store: The store.
        node_id: ID of the node.
        jobs: Jobs of the node.
        options: Other arguments of ``JobManager``.
    """
    try:
        return JobManager(store, node_id, jobs, **options)
    except LatchworkError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
