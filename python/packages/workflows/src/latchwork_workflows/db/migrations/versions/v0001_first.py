"""The first schema.

Revision 0001, of 2026-11.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:  # noqa: PLR0915 - one statement for each table and index
    """Create all tables."""
    op.create_table(
        "about",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_about")),
    )
    op.create_table(
        "account",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("password", sa.String(length=300), nullable=True),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_account")),
    )
    op.create_table(
        "bundle",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_bundle")),
    )
    op.create_table(
        "channel",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=12), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.Column("by", sa.String(length=200), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_channel")),
    )
    op.create_table(
        "command",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=20), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=True),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("project", sa.String(length=100), server_default=sa.text("''"), nullable=False),
        sa.Column("unique_key", sa.String(length=200), nullable=True),
        sa.Column("by", sa.String(length=200), server_default=sa.text("''"), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("done_at", sa.Float(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("backfill", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_command")),
        sa.UniqueConstraint("project", "unique_key", name=op.f("uq_command_project_unique_key")),
    )
    op.create_index(op.f("ix_command_run_id"), "command", ["run_id"])
    op.create_index(
        "ix_command_open",
        "command",
        ["shard", "id"],
        sqlite_where=sa.text("done_at IS NULL"),
        postgresql_where=sa.text("done_at IS NULL"),
    )
    op.create_table(
        "connection",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("url", sa.String(length=1000), nullable=False),
        sa.Column("secret", sa.String(length=100), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_connection")),
    )
    op.create_table(
        "definition",
        sa.Column("code", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("online", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("code", name=op.f("pk_definition")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_definition_project_name")),
    )
    op.create_table(
        "environment",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("variables", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_environment")),
    )
    op.create_table(
        "event",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=True),
        sa.Column("task", sa.String(length=100), server_default=sa.text("''"), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("by", sa.String(length=200), server_default=sa.text("''"), nullable=False),
        sa.Column("details", sa.JSON(), nullable=True),
        sa.Column("project", sa.String(length=100), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    op.create_index(op.f("ix_event_at"), "event", ["at"])
    op.create_index(op.f("ix_event_run_id_id"), "event", ["run_id", "id"])
    op.create_index(
        "ix_event_people", "event", ["id"], sqlite_where=sa.text("by <> ''"), postgresql_where=sa.text("by <> ''")
    )
    op.create_table(
        "parameter",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_parameter")),
    )
    op.create_table(
        "pool",
        sa.Column("name", sa.String(length=101), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("admission", sa.String(length=12), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_pool")),
    )
    op.create_table(
        "project_grant",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("grantee", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=10), nullable=False),
        sa.PrimaryKeyConstraint("project", "grantee", name=op.f("pk_project_grant")),
    )
    op.create_table(
        "result_cache",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("made_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("outputs", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_result_cache")),
    )
    op.create_index(op.f("ix_result_cache_expires_at"), "result_cache", ["expires_at"])
    op.create_table(
        "shard",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("token", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("owner", sa.String(length=200), server_default=sa.text("''"), nullable=False),
        sa.Column("seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shard")),
    )
    op.create_table(
        "account_role",
        sa.Column("account", sa.String(length=100), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=10), nullable=False),
        sa.ForeignKeyConstraint(
            ["account"], ["account.name"], name=op.f("fk_account_role_account"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("account", "project", name=op.f("pk_account_role")),
    )
    op.create_table(
        "api_token",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("account", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=10), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("used_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["account"], ["account.name"], name=op.f("fk_api_token_account"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_token_digest")),
    )
    op.create_index(op.f("ix_api_token_account"), "api_token", ["account"])
    op.create_table(
        "backfill",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("code", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("parallel", sa.Integer(), nullable=False),
        sa.Column("direction", sa.String(length=4), nullable=False),
        sa.Column("stop_on_failure", sa.Boolean(), nullable=False),
        sa.Column("dates", sa.Integer(), nullable=False),
        sa.Column("cause", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("by", sa.String(length=200), server_default=sa.text("''"), nullable=False),
        sa.ForeignKeyConstraint(["code"], ["definition.code"], name=op.f("fk_backfill_code"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backfill")),
    )
    op.create_index(op.f("ix_backfill_code_id"), "backfill", ["code", "id"])
    op.create_table(
        "definition_version",
        sa.Column("code", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("author", sa.String(length=200), server_default=sa.text("''"), nullable=False),
        sa.ForeignKeyConstraint(
            ["code"], ["definition.code"], name=op.f("fk_definition_version_code"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("code", "version", name=op.f("pk_definition_version")),
    )
    op.create_table(
        "fire",
        sa.Column("code", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("fire_time", sa.Float(), nullable=False),
        sa.Column("command", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["code"], ["definition.code"], name=op.f("fk_fire_code"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("code", "fire_time", name=op.f("pk_fire")),
    )
    op.create_table(
        "schedule",
        sa.Column("code", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("cron", sa.String(length=200), nullable=False),
        sa.Column("tz", sa.String(length=100), nullable=False),
        sa.Column("starts_at", sa.Float(), nullable=True),
        sa.Column("ends_at", sa.Float(), nullable=True),
        sa.Column("misfire", sa.String(length=8), nullable=False),
        sa.Column("max_lateness_s", sa.Float(), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("cursor", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["code"], ["definition.code"], name=op.f("fk_schedule_code"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("code", name=op.f("pk_schedule")),
    )
    op.create_index(op.f("ix_schedule_shard"), "schedule", ["shard"])
    op.create_table(
        "web_session",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("account", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("csrf", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["account"], ["account.name"], name=op.f("fk_web_session_account"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_web_session")),
    )
    op.create_index(op.f("ix_web_session_account"), "web_session", ["account"])
    op.create_index(op.f("ix_web_session_expires_at"), "web_session", ["expires_at"])
    op.create_table(
        "workflow_run",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("code", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("round", sa.Integer(), server_default="1", nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("ending", sa.String(length=16), server_default=sa.text("''"), nullable=False),
        sa.Column("dry", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("fresh", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("schedule_time", sa.Float(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("warn_at", sa.Float(), nullable=True),
        sa.Column("wake_at", sa.Float(), nullable=True),
        sa.Column("parent_task", sa.BigInteger(), nullable=True),
        sa.Column("parent_round", sa.Integer(), nullable=True),
        sa.Column("depth", sa.Integer(), server_default="0", nullable=False),
        sa.Column("backfill", sa.BigInteger(), nullable=True),
        sa.Column("serial_key", sa.String(length=200), nullable=True),
        sa.Column("by", sa.String(length=200), server_default=sa.text("''"), nullable=False),
        sa.ForeignKeyConstraint(
            ["code", "version"],
            ["definition_version.code", "definition_version.version"],
            name=op.f("fk_workflow_run_code_version"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workflow_run")),
        sa.UniqueConstraint("backfill", "schedule_time", name=op.f("uq_workflow_run_backfill_schedule_time")),
        sa.UniqueConstraint("parent_task", "parent_round", name=op.f("uq_workflow_run_parent_task_parent_round")),
    )
    op.create_index(
        "ix_workflow_run_active",
        "workflow_run",
        ["shard", "id"],
        sqlite_where=sa.text("active"),
        postgresql_where=sa.text("active"),
    )
    op.create_index(
        "ix_workflow_run_active_id",
        "workflow_run",
        ["id", "code"],
        sqlite_where=sa.text("active"),
        postgresql_where=sa.text("active"),
    )
    op.create_index(
        "ix_workflow_run_backfill_state",
        "workflow_run",
        ["backfill", "state", "schedule_time"],
        sqlite_where=sa.text("backfill IS NOT NULL"),
        postgresql_where=sa.text("backfill IS NOT NULL"),
    )
    op.create_index(op.f("ix_workflow_run_code_id"), "workflow_run", ["code", "id"])
    op.create_index(op.f("ix_workflow_run_code_schedule_time_id"), "workflow_run", ["code", "schedule_time", "id"])
    op.create_index(op.f("ix_workflow_run_code_state_id"), "workflow_run", ["code", "state", "id"])
    op.create_index(
        "ix_workflow_run_going",
        "workflow_run",
        ["id", "round", "code"],
        sqlite_where=sa.text("state IN ('running', 'ready_pause', 'ready_stop')"),
        postgresql_where=sa.text("state IN ('running', 'ready_pause', 'ready_stop')"),
    )
    op.create_index(op.f("ix_workflow_run_state_id"), "workflow_run", ["state", "id"])
    op.create_index(
        "ix_workflow_run_wake_at",
        "workflow_run",
        ["shard", "wake_at"],
        sqlite_where=sa.text("wake_at IS NOT NULL"),
        postgresql_where=sa.text("wake_at IS NOT NULL"),
    )
    op.create_table(
        "alert",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=True),
        sa.Column("code", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.String(length=12), nullable=False),
        sa.Column("cause", sa.String(length=80), nullable=False),
        sa.Column("task", sa.String(length=120), server_default=sa.text("''"), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["workflow_run.id"], name=op.f("fk_alert_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert")),
        sa.UniqueConstraint("run_id", "kind", "cause", name=op.f("uq_alert_run_id_kind_cause")),
    )
    op.create_index(op.f("ix_alert_code_id"), "alert", ["code", "id"])
    op.create_table(
        "task",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("map_index", sa.Integer(), server_default="-1", nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("n", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("forced_after", sa.Integer(), nullable=True),
        sa.Column("queue_key", sa.String(length=300), nullable=True),
        sa.Column("wake_at", sa.Float(), nullable=True),
        sa.Column("until", sa.Float(), nullable=True),
        sa.Column("cut", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("chosen", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("outputs", sa.JSON(), nullable=True),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["workflow_run.id"], name=op.f("fk_task_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_task")),
        sa.UniqueConstraint("run_id", "name", "round", "map_index", name=op.f("uq_task_run_id_name_round_map_index")),
    )
    op.create_table(
        "attempt",
        sa.Column("task", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("claim", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("worker", sa.String(length=200), nullable=False),
        sa.Column("host", sa.String(length=200), server_default=sa.text("''"), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("outcome", sa.String(length=12), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("log_ref", sa.String(length=400), server_default=sa.text("''"), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("cached_from", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("kind IN ('first', 'retry', 'failover')", name=op.f("ck_attempt_kind")),
        sa.ForeignKeyConstraint(["task"], ["task.id"], name=op.f("fk_attempt_task"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task", "n", "claim", name=op.f("pk_attempt")),
    )
    op.create_table(
        "delivery",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("alert", sa.BigInteger(), nullable=False),
        sa.Column("channel", sa.String(length=100), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("doubts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("round", sa.Integer(), server_default="1", nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=True),
        sa.Column("next_at", sa.Float(), nullable=True),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["alert"], ["alert.id"], name=op.f("fk_delivery_alert"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_delivery")),
        sa.UniqueConstraint("alert", "channel", name=op.f("uq_delivery_alert_channel")),
    )
    op.create_index(
        "ix_delivery_open",
        "delivery",
        ["next_at", "id"],
        sqlite_where=sa.text("next_at IS NOT NULL"),
        postgresql_where=sa.text("next_at IS NOT NULL"),
    )
    op.create_index(op.f("ix_delivery_state_id"), "delivery", ["state", "id"])
    op.create_table(
        "waiting",
        sa.Column("task", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("code", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.String(length=100), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["task"], ["task.id"], name=op.f("fk_waiting_task"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task", "code", "target", name=op.f("pk_waiting")),
    )
    op.create_index(op.f("ix_waiting_code_target"), "waiting", ["code", "target"])
    op.create_index(op.f("ix_waiting_shard_code"), "waiting", ["shard", "code"])
