"""Backfills, and which of them a command is about.

Revision 0004, of 2026-11.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """A table and a column."""
    op.add_column("command", sa.Column("backfill", sa.BigInteger(), nullable=True))
    op.create_table(
        "backfill",
        sa.Column("id", _ID, nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("code", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("parallel", sa.Integer(), nullable=False),
        sa.Column("direction", sa.String(length=4), nullable=False),
        sa.Column("stop_on_failure", sa.Boolean(), nullable=False),
        sa.Column("dates", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("by", sa.String(length=200), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backfill")),
        sa.ForeignKeyConstraint(["code"], ["definition.code"], name=op.f("fk_backfill_code"), ondelete="CASCADE"),
    )
    op.create_index(op.f("ix_backfill_code_id"), "backfill", ["code", "id"])
