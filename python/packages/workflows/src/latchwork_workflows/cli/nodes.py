"""`latchwork workflows master` and `worker`, and their setup: `init`, `upgrade`, `adopt-store`, `secrets`."""

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
    create_store_observers,
    disable_process_inspection,
    group,
    print_change,
    say,
    say_json,
    serve_worker,
)
from latchwork_workflows.cli.options import (
    DatabaseUrl,
    HomeDir,
    LogsUrl,
    StoreUrl,
    log_to_stderr,
    open_database,
    open_store,
    resolve_home,
    stop_on_signal,
)

if TYPE_CHECKING:
    from latchwork_workflows.logs import LogStore
    from latchwork_workflows.worker import WorkerOptions

F = TypeVar("F", bound=Callable[..., None])
Slots = Annotated[
    int | None,
    typer.Option(
        min=1, show_default=False, help="The maximum number of tasks at a time.  [default: two per processor]"
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="NAME",
        show_default=False,
        help="A worker group whose tasks run here. Repeatable.  [default: default]",
    ),
]
Tenants = Annotated[
    list[str] | None,
    typer.Option(
        "--tenants",
        metavar="USER",
        show_default=False,
        help="A user that tasks may run as, if the worker runs as root. Repeatable.  [default: none]",
    ),
]
SessionTtl = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        show_default=False,
        help="Seconds until the tasks of a dead worker run on another one. Default: the TTL in the URL "
        "of the store, or 30.",
    ),
]
TakeOrder = Annotated[
    str,
    typer.Option(
        "--order",
        metavar="ORDER",
        help="The order in which workers take tasks: run (finish older runs first) or submitted. Use "
        "the same value on all nodes.",
    ),
]
KeepDays = Annotated[
    float,
    typer.Option(
        min=0.0, help="Days after which ended runs are deleted, with their logs. The newest of each workflow are kept."
    ),
]
WorkDir = Annotated[
    Path | None,
    typer.Option(
        "--work-dir",
        metavar="DIR",
        show_default=False,
        help="The folder in which tasks run. Other users must not be able to change it.  [default: work in --home]",
    ),
]
SecretsDir = Annotated[
    Path | None,
    typer.Option(
        "--secrets-dir",
        metavar="DIR",
        envvar="LATCHWORK_WORKFLOWS_SECRETS",
        show_default=False,
        help="A folder with one file per secret.  [default: in --home]",
    ),
]
KeepRuns = Annotated[int, typer.Option(min=1, help="The number of newest runs of each workflow to keep, however old.")]
Root = Annotated[
    str, typer.Option("--root", metavar="KEY", help="The key prefix of the workflows in the store.", hidden=True)
]

#: Variables that are called otherwise than their options: Kubernetes gives every process of a namespace that has a
#: service `latchwork-workflows` a variable LATCHWORK_WORKFLOWS_PORT of its own making.
_CALLED = {"host": "PAGES_HOST", "port": "PAGES_PORT", "names": "PAGES_NAMES"}
#: Of one process alone, or of all commands.
_UNSET = frozenset({"name", "node_id", "debug"})


def node_command(*lines: str) -> Callable[[F], F]:
    """Return a decorator that registers a command that runs a node, such as a master or a worker.

    Options can also be set by environment variables, such as LATCHWORK_WORKFLOWS_SLOTS. The process contains secrets,
    so tasks of the same user cannot read its memory.

    Args:
        lines: The examples of the help text.
    """

    def make(function: F) -> F:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            disable_process_inspection()
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
def initialize_database(
    *,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            show_default=False,
            help="The number of shards into which runs are divided. It never changes.  [default: 4 with "
            "SQLite, 16 with PostgreSQL]",
        ),
    ] = None,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """Create the tables of a database, or upgrade them to this version. Existing data is kept."""
    where = resolve_home(home, database)
    from latchwork_workflows import initialize
    from latchwork_workflows.db import Database

    where.create_folder()
    opened = Database(where.database)
    try:
        found = initialize(opened, shards=shards)
    finally:
        opened.close()
    line = f"database {opened.url} is ready, with {counted(found.shards, 'shard')}"
    print_change(line, {"database": opened.url, "id": found.id, "shards": found.shards}, as_json=as_json)


@command("latchwork workflows upgrade")
def upgrade_database(*, home: HomeDir = None, database: DatabaseUrl = None, as_json: Json = False) -> None:
    """Upgrade the tables of a database to this version."""
    where = resolve_home(home, database)
    from latchwork_workflows import initialize

    with open_database(where) as opened:
        found = initialize(opened)
        document = {"database": opened.url, "id": found.id, "shards": found.shards}
        print_change(f"database {opened.url} is up to date", document, as_json=as_json)


@node_command(
    "latchwork workflows master --database postgresql://flows@db/flows --store etcd://e1:2379,e2:2379/flows "
    "--logs s3://bucket/flows",
)
def run_master(
    *,
    node_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            show_default=False,
            help="Unique among the running masters.  [default: the host name and random characters]",
        ),
    ] = None,
    lock_ttl_s: Annotated[
        float, typer.Option(min=1.0, help="Seconds until another master takes over the runs of a dead one.")
    ] = 10.0,
    order: TakeOrder = "run",
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
    """Run a master, which advances runs and fires schedules. Any number of masters divide the runs among them.

    Pass the log store of the workers: one master deletes old logs there, and workers claim no tasks before a master has
    set it up. One master sends alerts, with the channel secrets of its machine.
    """
    where = resolve_home(home, database, store, logs)
    from latchwork_workflows import load_installation
    from latchwork_workflows.logs import open_logs
    from latchwork_workflows.master import Master, Retention
    from latchwork_workflows.worker import Secrets

    more: dict[str, Any] = {"node_id": node_id, "order": check_order(order), "lock_ttl_s": lock_ttl_s}
    log_to_stderr()
    more |= {"logs": open_logs(where.logs), "keep": Retention(runs_days=keep_days, keep_runs=keep_runs)}
    more["secrets"] = Secrets(secrets or where.secrets)
    with open_database(where) as opened, open_store(where, create_store_observers(probe_port)) as there:
        node = Master(opened, there, **more)
        probes = serve_worker("workflows_master", node, probe_host, probe_port)
        with probes, stop_on_signal(partial(node.close, 0.0)) as stop, node:
            if where.can_read_worker_logs:
                _set_log_owner(more["logs"], load_installation(opened).id)
            say(f"master {node.node_id} started")
            sys.stdout.flush()
            SYSTEM_CLOCK.wait(stop)
            say(f"master {node.node_id} releases its shards")


@node_command(
    "latchwork workflows worker --group default --slots 4 --store etcd://e1:2379/flows --logs s3://bucket/flows",
    "latchwork workflows worker --group gpu --group default",
)
def run_worker(
    *,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Unique among the running workers.  [default: the host name and random characters]",
        ),
    ] = None,
    slots: Slots = None,
    groups: Groups = None,
    session_ttl_s: SessionTtl = None,
    on_disconnect: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="While the store is unreachable: wait (tasks continue as long as their claims last) or stop.",
        ),
    ] = "wait",
    drain_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds that running tasks have to complete after SIGTERM.")
    ] = 30.0,
    work_dir: WorkDir = None,
    tenants: Tenants = None,
    secrets: SecretsDir = None,
    probe_port: ProbePort = None,
    probe_host: ProbeHost = "127.0.0.1",
    home: HomeDir = None,
    store: StoreUrl = None,
    logs: LogsUrl = None,
) -> None:
    """Run a worker, which runs the tasks of its groups, each in its own process. It needs no database."""
    where = resolve_home(home, None, store, logs)
    from latchwork_workflows.logs import open_logs
    from latchwork_workflows.worker import Secrets, Worker

    more: dict[str, Any] = {"session_ttl_s": session_ttl_s, "on_disconnect": on_disconnect, "drain_s": drain_s}
    more |= {"tenants": tuple(tenants or ()), "work_dir": work_dir or where.folder / "work"}
    options = build_worker_options(slots, groups, **more)
    log_to_stderr()
    with open_store(where, create_store_observers(probe_port)) as there:
        node = Worker(
            there,
            logs=open_logs(where.logs),
            name=name,
            options=options,
            secrets=Secrets(secrets or where.secrets),
        )
        say(f"worker {node.name} runs tasks of {', '.join(node.options.groups)}")
        sys.stdout.flush()
        with serve_worker("workflows_worker", node, probe_host, probe_port):
            node.run_forever()


@command("latchwork workflows adopt-store", "latchwork workflows adopt-store --yes")
def adopt_store(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    home: HomeDir = None,
    database: DatabaseUrl = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Bind a database to another store, or bind them again after one was restored from a backup.

    This deletes the queue, the claims and the results of workflows from the store. Tasks that are queued or running
    according to the database run again, so a task that has just ended runs twice.
    """
    where = resolve_home(home, database, store)
    from latchwork_workflows import Keys
    from latchwork_workflows import adopt_store as adopt

    with open_database(where) as opened, open_store(where) as there:
        if not yes:
            typer.confirm(
                f"Delete all workflow data in store {there.url}, and run the open tasks of {opened.url} again?",
                abort=True,
            )
        found = adopt(opened, there, Keys())
        print_change(f"store {there.url} now belongs to database {opened.url}", {"id": found.id}, as_json=as_json)


Whose = Annotated[
    str,
    typer.Option(
        "--project", metavar="PROJECT", show_default=False, help="The project of the secret.  [default: default]"
    ),
]
OfChannels = Annotated[bool, typer.Option("--channels", help="A secret of the alert channels, not of a project.")]
OfAll = Annotated[bool, typer.Option("--shared", help="A secret of all projects and channels.")]


@command(
    "latchwork workflows secrets set DB_PASSWORD",
    "echo -n hunter2 | latchwork workflows secrets set DB_PASSWORD --project billing",
)
def set_secret(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name, as used in `${secret:NAME}`.")],
    *,
    project: Whose = "",
    channels: OfChannels = False,
    shared: OfAll = False,
    home: HomeDir = None,
) -> None:
    """Store a secret for the workers of this machine. Prompts for its value, or reads it from a pipe."""
    where = resolve_home(home)
    scope = _secret_scope(project, channels, shared)
    from latchwork_workflows.worker import write_secret

    if sys.stdin.isatty():
        value = typer.prompt(f"value of {name}", hide_input=True)
    else:
        value = sys.stdin.read().removesuffix("\n")
    where.create_folder()
    try:
        path = write_secret(where.secrets, name, value, scope)
    except ValueError as error:
        raise UsageError(str(error)) from None
    say(f"secret {name} is in {path}")


@command("latchwork workflows secrets list")
def list_secrets(*, home: HomeDir = None, as_json: Json = False) -> None:
    """List the names of the secrets of this machine with their projects. Values are never printed."""
    where = resolve_home(home)
    names = sorted(f"{each.parent.name}/{each.name}" for each in where.secrets.glob("*/*"))
    if as_json:
        say_json({"secrets": names})
    for name in names if not as_json else ():
        say(name)


@command("latchwork workflows secrets rm DB_PASSWORD", "latchwork workflows secrets rm DB_PASSWORD --project billing")
def remove_secret(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the secret.")],
    *,
    project: Whose = "",
    channels: OfChannels = False,
    shared: OfAll = False,
    home: HomeDir = None,
) -> None:
    """Delete a secret of this machine."""
    where = resolve_home(home)
    scope = _secret_scope(project, channels, shared)
    path = where.secrets / scope / name
    if "/" in name + scope or not path.is_file():
        raise UsageError(f"this machine has no secret {name!r} of {scope}")
    path.unlink()
    say(f"secret {name} deleted")


def _secret_scope(project: str, channels: bool, shared: bool) -> str:
    from latchwork_workflows.worker import CHANNELS, SHARED

    if bool(project) + channels + shared > 1:
        raise UsageError("give one of --project, --channels and --shared")
    return CHANNELS if channels else SHARED if shared else project or "default"


secrets_app = group(
    "Secrets of the workers of this machine, by name.", set=set_secret, list=list_secrets, rm=remove_secret
)


def build_worker_options(slots: int | None, groups: list[str] | None, **more: Any) -> WorkerOptions:
    """Return the options of a worker.


    Raises:
        UsageError: They are invalid.
    """
    from latchwork_workflows.worker import WorkerOptions

    given = {"slots": slots, "groups": tuple(groups) if groups else None, **more}
    try:
        return WorkerOptions(**{name: each for name, each in given.items() if each is not None})
    except ValueError as error:
        raise UsageError(str(error)) from None


def _set_log_owner(logs: LogStore, owner: str) -> None:
    """Record in the log store to which installation it belongs.

    Workers claim no tasks before that, because a folder that is not marked may be the wrong one.
    """
    try:
        logs.set_owner(owner)
    except OSError as error:
        what = "log store %s is not writable; workers claim no tasks unless a master has set it up before: %s"
        logging.getLogger("latchwork_workflows").warning(what, logs.url, error)


def check_order(order: str) -> Any:
    """Check the order in which workers take tasks.


    Raises:
        UsageError: The order is unknown.
    """
    if order not in {"run", "submitted"}:
        raise UsageError(f"--order is run or submitted, not {order!r}")
    return order
