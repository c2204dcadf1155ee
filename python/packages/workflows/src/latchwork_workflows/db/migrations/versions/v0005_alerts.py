"""Alerts: channels, what is told, and each delivery.

Revision 0005, of 2026-11.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_OPEN = sa.text("next_at IS NOT NULL")


def upgrade() -> None:
    """Three tables."""
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
        "alert",
        sa.Column("id", _ID, nullable=False),
        sa.Column("instance", sa.BigInteger(), nullable=True),
        sa.Column("code", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.String(length=12), nullable=False),
        sa.Column("cause", sa.String(length=80), nullable=False),
        sa.Column("task", sa.String(length=120), server_default=sa.text("''"), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["instance"], ["instance.id"], name=op.f("fk_alert_instance"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert")),
        sa.UniqueConstraint("instance", "kind", "cause", name=op.f("uq_alert_instance_kind_cause")),
    )
    op.create_index(op.f("ix_alert_code_id"), "alert", ["code", "id"])
    op.create_table(
        "delivery",
        sa.Column("id", _ID, nullable=False),
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
    op.create_index("ix_delivery_open", "delivery", ["next_at", "id"], sqlite_where=_OPEN, postgresql_where=_OPEN)
    op.create_index(op.f("ix_delivery_state_id"), "delivery", ["state", "id"])
