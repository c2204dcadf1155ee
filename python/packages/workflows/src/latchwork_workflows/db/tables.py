"""The tables of the database."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

#: Names of constraints, so that later migrations can name them.
NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMES)
#: SQLite assigns row IDs only to the type INTEGER, which has 64 bits there.
Id = BigInteger().with_variant(Integer, "sqlite")

_ACTIVE = text("active")
#: For a WHERE clause: the column itself becomes ``active = 1``, for which SQLite does not use the partial index.
IS_ACTIVE = text("workflow_run.active")
_GOING = text("state IN ('running', 'ready_pause', 'ready_stop')")
#: Likewise: the runs whose tasks workers may have. Waiting dates of a backfill have none.
IS_GOING = text("workflow_run.state IN ('running', 'ready_pause', 'ready_stop')")
_OPEN = text("done_at IS NULL")
_WAKES = text("wake_at IS NOT NULL")
_OF_BACKFILLS = text("backfill IS NOT NULL")
_PEOPLE = text("by <> ''")

#: The row of ``about`` with the token of the master that sends alerts.
SENDER = "alerts sender"
#: Properties of this database. ``id`` identifies the pair of database and store, ``store`` the store, ``shards`` is
#: the number of shards. ``high/<shard>`` is a transaction whose mark the store has. ``logs/<run>`` is the code of
#: a deleted run whose logs remain to be deleted. ``SENDER`` is the token of the master that sends alerts.
about = Table(
    "about",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", Text, nullable=False),
)

shard = Table(
    "shard",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("token", BigInteger, nullable=False, server_default="0"),
    Column("owner", String(200), nullable=False, server_default=text("''")),
    Column("seq", BigInteger, nullable=False, server_default="0"),
)

definition = Table(
    "definition",
    metadata,
    Column("code", Id, primary_key=True),
    Column("project", String(100), nullable=False),
    Column("name", String(100), nullable=False),
    Column("version", Integer, nullable=False),
    Column("online", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", Float, nullable=False),
    Column("changed_at", Float, nullable=False),
    UniqueConstraint("project", "name"),
)

definition_version = Table(
    "definition_version",
    metadata,
    Column("code", Id, ForeignKey("definition.code", ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("body", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("author", String(200), nullable=False, server_default=text("''")),
)

schedule = Table(
    "schedule",
    metadata,
    Column("code", Id, ForeignKey("definition.code", ondelete="CASCADE"), primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("cron", String(200), nullable=False),
    Column("tz", String(100), nullable=False),
    Column("starts_at", Float),
    Column("ends_at", Float),
    Column("misfire", String(8), nullable=False),
    Column("max_lateness_s", Float, nullable=False),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("cursor", Float, nullable=False),
    Index(None, "shard"),
)

fire = Table(
    "fire",
    metadata,
    Column("code", Id, ForeignKey("definition.code", ondelete="CASCADE"), primary_key=True),
    Column("fire_time", Float, primary_key=True),
    Column("command", BigInteger, nullable=False),
)

command = Table(
    "command",
    metadata,
    Column("id", Id, primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("type", String(20), nullable=False),
    Column("run_id", BigInteger),
    Column("args", JSON, nullable=False),
    # The project of the unique key.
    Column("project", String(100), nullable=False, server_default=text("''")),
    Column("unique_key", String(200)),
    Column("by", String(200), nullable=False, server_default=text("''")),
    Column("created_at", Float, nullable=False),
    Column("done_at", Float),
    Column("error", Text),
    Column("backfill", BigInteger),
    UniqueConstraint("project", "unique_key"),
    Index("ix_command_open", "shard", "id", sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index(None, "run_id"),
)

workflow_run = Table(
    "workflow_run",
    metadata,
    Column("id", Id, primary_key=True),
    Column("code", BigInteger, nullable=False),
    Column("version", Integer, nullable=False),
    Column("shard", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("active", Boolean, nullable=False),
    Column("round", Integer, nullable=False, server_default="1"),
    Column("priority", Integer, nullable=False),
    Column("ending", String(16), nullable=False, server_default=text("''")),
    Column("dry", Boolean, nullable=False, server_default=text("false")),
    # Outputs are not taken from the result cache.
    Column("fresh", Boolean, nullable=False, server_default=text("false")),
    Column("params", JSON, nullable=False),
    Column("schedule_time", Float, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("warn_at", Float),
    Column("wake_at", Float),
    Column("parent_task", BigInteger),
    Column("parent_round", Integer),
    # The number of runs that it is nested in.
    Column("depth", Integer, nullable=False, server_default="0"),
    Column("backfill", BigInteger),
    Column("serial_key", String(200)),
    Column("by", String(200), nullable=False, server_default=text("''")),
    ForeignKeyConstraint(["code", "version"], ["definition_version.code", "definition_version.version"]),
    UniqueConstraint("parent_task", "parent_round"),
    UniqueConstraint("backfill", "schedule_time"),
    Index("ix_workflow_run_active", "shard", "id", sqlite_where=_ACTIVE, postgresql_where=_ACTIVE),
    Index("ix_workflow_run_going", "id", "round", "code", sqlite_where=_GOING, postgresql_where=_GOING),
    Index("ix_workflow_run_active_id", "id", "code", sqlite_where=_ACTIVE, postgresql_where=_ACTIVE),
    Index("ix_workflow_run_wake_at", "shard", "wake_at", sqlite_where=_WAKES, postgresql_where=_WAKES),
    Index(None, "code", "id"),
    Index(None, "code", "schedule_time", "id"),
    Index(None, "state", "id"),
    Index(None, "code", "state", "id"),
    Index(
        "ix_workflow_run_backfill_state",
        "backfill",
        "state",
        "schedule_time",
        sqlite_where=_OF_BACKFILLS,
        postgresql_where=_OF_BACKFILLS,
    ),
)

#: Runs of one workflow for many schedule times. Each is a run of its shard.
backfill = Table(
    "backfill",
    metadata,
    Column("id", Id, primary_key=True),
    Column("shard", Integer, nullable=False),
    Column("code", BigInteger, ForeignKey("definition.code", ondelete="CASCADE"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("parallel", Integer, nullable=False),
    Column("direction", String(4), nullable=False),
    Column("stop_on_failure", Boolean, nullable=False),
    Column("dates", Integer, nullable=False),
    # The backfill that triggered this one, of a workflow that this one depends on.
    Column("cause", BigInteger),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("by", String(200), nullable=False, server_default=text("''")),
    Index(None, "code", "id"),
)

task = Table(
    "task",
    metadata,
    Column("id", Id, primary_key=True),
    Column("run_id", BigInteger, ForeignKey("workflow_run.id", ondelete="CASCADE"), nullable=False),
    Column("name", String(100), nullable=False),
    Column("round", Integer, nullable=False),
    # -1 for tasks outside of maps, because NULLs are never equal.
    Column("map_index", Integer, nullable=False, server_default="-1"),
    Column("state", String(16), nullable=False),
    Column("n", Integer, nullable=False, server_default="0"),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("forced_after", Integer),
    # Partition and sort key of the queue item. Computing it again (later, with another priority or pool) could give a
    # second item.
    Column("queue_key", String(300)),
    Column("wake_at", Float),
    # The deadline of a task that its master holds while it waits for other workflows.
    Column("until", Float),
    # Skipped because no branch to it was chosen.
    Column("cut", Boolean, nullable=False, server_default=text("false")),
    # For conditions and switches: the first tasks of the chosen branch.
    Column("chosen", JSON(none_as_null=True)),
    Column("outputs", JSON),
    Column("changed_at", Float, nullable=False),
    UniqueConstraint("run_id", "name", "round", "map_index"),
)

#: Tasks that wait for runs of a workflow, or for a task in these runs (empty: for the run). When one of these ends,
#: each waiting shard gets a ``wake`` command.
waiting = Table(
    "waiting",
    metadata,
    Column("task", Id, ForeignKey("task.id", ondelete="CASCADE"), primary_key=True),
    Column("code", BigInteger, primary_key=True),
    Column("target", String(100), primary_key=True),
    Column("run_id", BigInteger, nullable=False),
    Column("shard", Integer, nullable=False),
    Index(None, "code", "target"),
    Index(None, "shard", "code"),
)

attempt = Table(
    "attempt",
    metadata,
    Column("task", BigInteger, ForeignKey("task.id", ondelete="CASCADE"), primary_key=True),
    Column("n", Integer, primary_key=True),
    # The token of the claim. A count would repeat after a release that does not count.
    Column("claim", BigInteger, primary_key=True),
    Column("kind", String(8), nullable=False),
    Column("worker", String(200), nullable=False),
    Column("host", String(200), nullable=False, server_default=text("''")),
    Column("pid", Integer),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("outcome", String(12)),
    Column("exit_code", Integer),
    Column("log_ref", String(400), nullable=False, server_default=text("''")),
    Column("error", Text),
    # The run whose outputs it reuses. It did not run itself.
    Column("cached_from", BigInteger),
    CheckConstraint("kind IN ('first', 'retry', 'failover')", name="kind"),
)

#: Events for users: timeline and audit log. They are kept after their subject is deleted.
event = Table(
    "event",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", Float, nullable=False),
    Column("run_id", BigInteger),
    Column("task", String(100), nullable=False, server_default=text("''")),
    Column("kind", String(40), nullable=False),
    Column("by", String(200), nullable=False, server_default=text("''")),
    Column("details", JSON),
    # For events without a run. Empty: global.
    Column("project", String(100), nullable=False, server_default=text("''")),
    Index(None, "run_id", "id"),
    Index(None, "at"),
    Index("ix_event_people", "id", sqlite_where=_PEOPLE, postgresql_where=_PEOPLE),
)

#: Named values for ``${name}``, of all projects (empty project) or of one.
parameter = Table(
    "parameter",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("value", JSON, nullable=False),
)

#: Named sets of variables, likewise.
environment = Table(
    "environment",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("variables", JSON, nullable=False),
)

#: Connections with the names of their secrets, but without passwords. Likewise.
connection = Table(
    "connection",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("url", String(1000), nullable=False),
    Column("secret", String(100), nullable=False, server_default=text("''")),
)

#: The maximum number of running tasks of each pool. For pools of projects, also the policy for further starts.
pool = Table(
    "pool",
    metadata,
    Column("name", String(101), primary_key=True),
    Column("size", Integer, nullable=False),
    Column("admission", String(12), nullable=False),
)

#: Code bundles by the SHA-256 of their bytes. The bytes are in the log store, unless workers cannot reach it.
bundle = Table(
    "bundle",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("size", Integer, nullable=False),
    Column("data", LargeBinary),
)

#: Accounts for the API and the pages. ``password`` is an ``scrypt`` hash. NULL: only tokens and links work.
account = Table(
    "account",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("password", String(300)),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("created_at", Float, nullable=False),
)

#: The role of an account in a project. An empty project means all projects.
account_role = Table(
    "account_role",
    metadata,
    Column("account", String(100), ForeignKey("account.name", ondelete="CASCADE"), primary_key=True),
    Column("project", String(100), primary_key=True),
    Column("role", String(10), nullable=False),
)

#: API tokens by the SHA-256 of their text. ``role`` is the maximum role of the token, whatever that of the account.
api_token = Table(
    "api_token",
    metadata,
    Column("id", Id, primary_key=True),
    Column("account", String(100), ForeignKey("account.name", ondelete="CASCADE"), nullable=False),
    Column("name", String(100), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("role", String(10)),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("used_at", Float),
    Index(None, "account"),
)

#: Sessions of browsers and one-time sign-in links, by the SHA-256 of their secrets.
web_session = Table(
    "web_session",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("account", String(100), ForeignKey("account.name", ondelete="CASCADE"), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("csrf", String(64), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Index(None, "account"),
    Index(None, "expires_at"),
)


_OPEN_DELIVERY = text("next_at IS NOT NULL")

#: Channels for alerts. ``options`` depend on the kind of the channel.
channel = Table(
    "channel",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("kind", String(12), nullable=False),
    Column("options", JSON, nullable=False),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("changed_at", Float, nullable=False),
    Column("by", String(200), nullable=False, server_default=text("''")),
)

#: Alerts. ``cause`` distinguishes alerts of one kind: the start time of the run, an attempt, or an owner of a shard.
#: Channel tests have no run.
alert = Table(
    "alert",
    metadata,
    Column("id", Id, primary_key=True),
    Column("run_id", BigInteger, ForeignKey("workflow_run.id", ondelete="CASCADE")),
    Column("code", BigInteger),
    Column("kind", String(12), nullable=False),
    Column("cause", String(80), nullable=False),
    Column("task", String(120), nullable=False, server_default=text("''")),
    Column("at", Float, nullable=False),
    Column("details", JSON, nullable=False),
    UniqueConstraint("run_id", "kind", "cause"),
    Index(None, "code", "id"),
)

#: Deliveries: one alert through one channel. ``tries`` counts failures, ``doubts`` unknown results, and ``round``
#: resends on request. ``next_at`` is the time of the next try, NULL for none.
delivery = Table(
    "delivery",
    metadata,
    Column("id", Id, primary_key=True),
    Column("alert", BigInteger, ForeignKey("alert.id", ondelete="CASCADE"), nullable=False),
    Column("channel", String(100), nullable=False),
    Column("state", String(10), nullable=False),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("doubts", Integer, nullable=False, server_default="0"),
    Column("round", Integer, nullable=False, server_default="1"),
    Column("token", BigInteger),
    Column("next_at", Float),
    Column("changed_at", Float, nullable=False),
    Column("error", Text),
    UniqueConstraint("alert", "channel"),
    Index("ix_delivery_open", "next_at", "id", sqlite_where=_OPEN_DELIVERY, postgresql_where=_OPEN_DELIVERY),
    Index(None, "state", "id"),
)


#: Outputs of succeeded tasks, by the SHA-256 of all their inputs. Any shard writes them.
result_cache = Table(
    "result_cache",
    metadata,
    Column("key", String(64), primary_key=True),
    # The run of the task. It may be deleted.
    Column("run_id", BigInteger, nullable=False),
    Column("made_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("outputs", JSON, nullable=False),
    Index(None, "expires_at"),
)

#: The projects that may use the workflows of a project. An empty grantee means all projects.
project_grant = Table(
    "project_grant",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("grantee", String(100), primary_key=True),
    Column("role", String(10), nullable=False),
)
