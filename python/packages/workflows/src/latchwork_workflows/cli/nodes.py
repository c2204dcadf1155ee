"""`latchwork workflows master` and `worker`, and what they stand on: `init`, `upgrade`, `adopt-store`, `secrets`."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args

import typer
from typer.models import OptionInfo

from latchwork.clock import SYSTEM_CLOCK
from latchwork.spi import (
    Json,
    ProbeHost,
    ProbePort,
    UsageError,
    command,
    counted,
    group,
    refuse_readers,
    renamed,
    say,
    say_json,
    serving_worker,
    store_observers,
    told,
)
from latchwork_workflows.cli.options import (
    DatabaseUrl,
    HomeDir,
    LogsUrl,
    StoreUrl,
    home_of,
    log_to_stderr,
    opened_database,
    opened_store,
    until_signal,
)

if TYPE_CHECKING:
    from latchwork_workflows.logs import LogStore
    from latchwork_workflows.worker import WorkerOptions

F = TypeVar("F", bound=Callable[..., None])
Slots = Annotated[
    int | None,
    typer.Option(min=1, show_default=False, help="How many tasks run here at a time.  [unless given: two a processor]"),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="NAME",
        show_default=False,
        help="A worker group whose tasks are run here; may be given several times.  [unless given: default]",
    ),
]
Tenants = Annotated[
    list[str] | None,
    typer.Option(
        "--tenants",
        metavar="USER",
        show_default=False,
        help="A user of this machine that tasks may run as, if this runs as root; may be given several times.  "
        "[unless given: none]",
    ),
]
SessionTtl = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        show_default=False,
        help="Seconds after which tasks of a dead worker are another's, or run again. "
        "Unless given: that of the URL of the store, else 30.",
    ),
]
TakeOrder = Annotated[
    str,
    typer.Option(
        "--order",
        metavar="ORDER",
        help="By what tasks are taken: instance (a run comes whole before the next), or submitted. Give all the same.",
    ),
]
KeepDays = Annotated[
    float,
    typer.Option(
        min=0.0, help="Days after which runs that are over are deleted, with their logs; the newest of each stay."
    ),
]
WorkDir = Annotated[
    Path | None,
    typer.Option(
        "--work-dir",
        metavar="DIR",
        show_default=False,
        help="The folder in which tasks run. No other user may be able to change it.  [unless given: work, in --home]",
    ),
]
SecretsDir = Annotated[
    Path | None,
    typer.Option(
        "--secrets-dir",
        metavar="DIR",
        envvar="LATCHWORK_WORKFLOWS_SECRETS",
        show_default=False,
        help="A folder with a file for each secret.  [unless given: in --home]",
    ),
]
KeepRuns = Annotated[int, typer.Option(min=1, help="How many of the newest runs of a workflow stay, however old.")]
Root = Annotated[
    str, typer.Option("--root", metavar="KEY", help="The key below which the workflows are in the store.", hidden=True)
]

#: Variables that are called otherwise than their options: Kubernetes gives every process of a namespace that has a
#: service `latchwork-workflows` a variable LATCHWORK_WORKFLOWS_PORT of its own making.
_CALLED = {"host": "PAGES_HOST", "port": "PAGES_PORT", "names": "PAGES_NAMES"}
#: Of one process alone, or of all commands.
_UNSET = frozenset({"name", "node_id", "debug"})


def node(*lines: str) -> Callable[[F], F]:
    """Make a function a command that runs a node: its options may be given by variables, LATCHWORK_WORKFLOWS_SLOTS.

    A node holds secrets in memory that tasks of the same user must not read there.
    """

    def make(function: F) -> F:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            refuse_readers()
            function(*args, **kwargs)

        made = command(*lines)(cast("F", run))
        for each in inspect.signature(made).parameters.values():
            for option in get_args(each.annotation)[1:]:
                if isinstance(option, OptionInfo) and option.envvar is None and each.name not in _UNSET:
                    option.envvar = f"LATCHWORK_WORKFLOWS_{_CALLED.get(each.name, each.name.upper())}"
        return made

    return make


@command(
    "latchwork workflows init --home ./flows",
    "latchwork workflows init --database postgresql://flows@db/flows --shards 16",
)
def init(
    *,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            show_default=False,
            help="Into how many parts runs are divided among masters; it never changes.  [unless given: 4 with SQLite, "
            "16 with PostgreSQL]",
        ),
    ] = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Make the tables of a database, or bring older ones to this version. What is there stays."""
    where = home_of(home, database)
    from latchwork_workflows import initialize
    from latchwork_workflows.db import Database

    where.make()
    opened = Database(where.database)
    try:
        found = initialize(opened, shards=shards)
    finally:
        opened.close()
    line = f"database {opened.url} is ready, with {counted(found.shards, 'shard')}"
    told(line, {"database": opened.url, "id": found.id, "shards": found.shards}, as_json=as_json)


@command("latchwork workflows upgrade")
def upgrade(*, home: HomeDir = None, database: DatabaseUrl = None, as_json: Json = False) -> None:
    """Bring the tables of a database to this version; nothing if they are that."""
    where = home_of(home, database)
    from latchwork_workflows import initialize

    with opened_database(where) as opened:
        found = initialize(opened)
        document = {"database": opened.url, "id": found.id, "shards": found.shards}
        told(f"database {opened.url} is what this version needs", document, as_json=as_json)


@node(
    "latchwork workflows master --database postgresql://flows@db/flows --store etcd://e1:2379,e2:2379/flows "
    "--logs s3://bucket/flows",
)
def master(
    *,
    node_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", show_default=False, help="Unique among living masters.  [unless given: the host's, and more]"
        ),
    ] = None,
    lock_ttl_s: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which the runs of a dead master are another's.")
    ] = 10.0,
    order: TakeOrder = "instance",
    keep_days: KeepDays = 180.0,
    keep_runs: KeepRuns = 32,
    secrets: SecretsDir = None,
    probe_port: ProbePort = None,
    probe_host: ProbeHost = "127.0.0.1",
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    logs: LogsUrl = None,
) -> None:
    """Run a master: it advances runs and fires schedules. Any number may run; each run is one master's at a time.

    Give it the logs of the workers, which take no tasks before a master has begun these; one master deletes what is too
    old there. One sends alerts; the secrets of channels are its machine's, as for workers.
    """
    where = home_of(home, database, store, logs)
    from latchwork_workflows import installation_of
    from latchwork_workflows.logs import open_logs
    from latchwork_workflows.master import Master, Retention
    from latchwork_workflows.worker import Secrets

    more: dict[str, Any] = {"node_id": node_id, "order": order_of(order), "lock_ttl_s": lock_ttl_s}
    log_to_stderr()
    more |= {"logs": open_logs(where.logs), "keep": Retention(runs_days=keep_days, keep_runs=keep_runs)}
    more["secrets"] = Secrets(secrets or where.secrets)
    with opened_database(where) as opened, opened_store(where, store_observers(probe_port)) as there:
        node = Master(opened, there, **more)
        probes = serving_worker("workflows_master", node, probe_host, probe_port)
        with probes, until_signal(partial(node.close, 0.0)) as stop, node:
            if where.has_logs:
                _begin_logs(more["logs"], installation_of(opened).id)
            say(f"master {node.node_id} is at work")
            sys.stdout.flush()
            SYSTEM_CLOCK.wait(stop)
            say(f"master {node.node_id} gives its runs to others")


@node(
    "latchwork workflows worker --group default --slots 4 --store etcd://e1:2379/flows --logs s3://bucket/flows",
    "latchwork workflows worker --group gpu --group default",
)
def worker(
    *,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Unique among living workers.  [unless given: the host's, and more]",
        ),
    ] = None,
    slots: Slots = None,
    groups: Groups = None,
    session_ttl_s: SessionTtl = None,
    on_disconnect: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="While the store is out of reach: wait (tasks go on as long as nobody else can have them), or stop.",
        ),
    ] = "wait",
    drain_s: Annotated[float, typer.Option(min=0.0, help="Seconds that tasks have to end after SIGTERM.")] = 30.0,
    work_dir: WorkDir = None,
    tenants: Tenants = None,
    secrets: SecretsDir = None,
    probe_port: ProbePort = None,
    probe_host: ProbeHost = "127.0.0.1",
    home: HomeDir = None,
    store: StoreUrl = None,
    logs: LogsUrl = None,
) -> None:
    """Run a worker: it takes tasks of its groups, and runs each in a process of its own. It needs no database."""
    where = home_of(home, None, store, logs)
    from latchwork_workflows.logs import open_logs
    from latchwork_workflows.worker import Secrets, Worker

    more: dict[str, Any] = {"session_ttl_s": session_ttl_s, "on_disconnect": on_disconnect, "drain_s": drain_s}
    more |= {"tenants": tuple(tenants or ()), "work_dir": work_dir or where.folder / "work"}
    options = worker_options(slots, groups, **more)
    log_to_stderr()
    with opened_store(where, store_observers(probe_port)) as there:
        node = Worker(
            there,
            logs=open_logs(where.logs),
            name=name,
            options=options,
            secrets=Secrets(secrets or where.secrets),
        )
        say(f"worker {node.name} takes tasks of {', '.join(node.options.groups)}")
        sys.stdout.flush()
        with serving_worker("workflows_worker", node, probe_host, probe_port):
            node.run_forever()


@command("latchwork workflows adopt-store", "latchwork workflows adopt-store --yes")
def adopt_store(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Join a database and a store that are not of one moment: after a restore of either, or with a new store.

    What the store has queued, running or ended is dropped, and what the database has as queued or running runs again:
    a task that ended in between runs twice.
    """
    where = home_of(home, database, store)
    from latchwork_workflows import Keys
    from latchwork_workflows import adopt_store as adopt

    with opened_database(where) as opened, opened_store(where) as there:
        if not yes:
            typer.confirm(
                f"Drop what store {there.url} knows of workflows, and run again what {opened.url} has open?", abort=True
            )
        found = adopt(opened, there, Keys())
        told(f"store {there.url} belongs to database {opened.url} now", {"id": found.id}, as_json=as_json)


Whose = Annotated[
    str,
    typer.Option("--project", metavar="PROJECT", show_default=False, help="Whose it is.  [unless given: default]"),
]
OfChannels = Annotated[bool, typer.Option("--channels", help="Of the channels of alerts, and of no project.")]
OfAll = Annotated[bool, typer.Option("--shared", help="Of all projects and channels.")]


@command(
    "latchwork workflows secrets set DB_PASSWORD",
    "echo -n hunter2 | latchwork workflows secrets set DB_PASSWORD --project billing",
)
def secrets_set(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `${secret:NAME}` names it.")],
    *,
    project: Whose = "",
    channels: OfChannels = False,
    shared: OfAll = False,
    home: HomeDir = None,
) -> None:
    """Keep a secret for the workers of this machine: asked for without an echo, or read from a pipe."""
    where = home_of(home)
    scope = _scope_of(project, channels, shared)
    from latchwork_workflows.worker import write_secret

    if sys.stdin.isatty():
        value = typer.prompt(f"value of {name}", hide_input=True)
    else:
        value = sys.stdin.read().removesuffix("\n")
    where.make()
    try:
        path = write_secret(where.secrets, name, value, scope)
    except ValueError as error:
        raise UsageError(str(error)) from None
    say(f"secret {name} is in {path}")


@command("latchwork workflows secrets list")
def secrets_list(*, home: HomeDir = None, as_json: Json = False) -> None:
    """List the names of the secrets that this machine keeps, each after its project; never their values."""
    where = home_of(home)
    names = sorted(f"{each.parent.name}/{each.name}" for each in where.secrets.glob("*/*"))
    if as_json:
        say_json({"secrets": names})
    for name in names if not as_json else ():
        say(name)


@command("latchwork workflows secrets rm DB_PASSWORD", "latchwork workflows secrets rm DB_PASSWORD --project billing")
def secrets_rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the secret.")],
    *,
    project: Whose = "",
    channels: OfChannels = False,
    shared: OfAll = False,
    home: HomeDir = None,
) -> None:
    """Forget a secret of this machine."""
    where = home_of(home)
    scope = _scope_of(project, channels, shared)
    path = where.secrets / scope / name
    if "/" in name + scope or not path.is_file():
        raise UsageError(f"this machine keeps no secret {name!r} of {scope}")
    path.unlink()
    say(f"secret {name} is gone")


def _scope_of(project: str, channels: bool, shared: bool) -> str:
    from latchwork_workflows.worker import CHANNELS, SHARED

    if bool(project) + channels + shared > 1:
        raise UsageError("give one of --project, --channels and --shared")
    return CHANNELS if channels else SHARED if shared else project or "default"


secrets_app = group("Secrets of this machine's workers, by name.", set=secrets_set, list=secrets_list, rm=secrets_rm)
renamed(secrets_app, remove=secrets_rm)


def worker_options(slots: int | None, groups: list[str] | None, **more: Any) -> WorkerOptions:
    """How a worker runs tasks, as it was given.

    Raises:
        UsageError: it cannot.
    """
    from latchwork_workflows.worker import WorkerOptions

    given = {"slots": slots, "groups": tuple(groups) if groups else None, **more}
    try:
        return WorkerOptions(**{name: each for name, each in given.items() if each is not None})
    except ValueError as error:
        raise UsageError(str(error)) from None


def _begin_logs(logs: LogStore, owner: str) -> None:
    """Note whose logs these are: workers take no tasks with logs of nobody, which may be a folder of their own."""
    try:
        logs.mark(owner)
    except OSError as error:
        what = "log store %s cannot be written, and workers take no tasks unless it was begun before: %s"
        logging.getLogger("latchwork_workflows").warning(what, logs.url, error)


def order_of(order: str) -> Any:
    """By what tasks are taken.

    Raises:
        UsageError: there is no such order.
    """
    if order not in {"instance", "submitted"}:
        raise UsageError(f"--order is instance or submitted, not {order!r}")
    return order
