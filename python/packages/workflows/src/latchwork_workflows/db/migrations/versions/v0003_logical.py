"""Tasks that masters hold themselves: how deep a run is inside others, what was cut off, and who waits for what.

Revision 0003, of 2026-11.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Four columns and a table."""
    op.add_column("instance", sa.Column("depth", sa.Integer(), server_default="0", nullable=False))
    op.add_column("task", sa.Column("until", sa.Float(), nullable=True))
    op.add_column("task", sa.Column("cut", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("task", sa.Column("chosen", sa.JSON(), nullable=True))
    op.create_table(
        "waiting",
        sa.Column("task", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("code", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.String(length=100), nullable=False),
        sa.Column("instance", sa.BigInteger(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["task"], ["task.id"], name=op.f("fk_waiting_task"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task", "code", "target", name=op.f("pk_waiting")),
    )
    op.create_index(op.f("ix_waiting_code_target"), "waiting", ["code", "target"])
    op.create_index(op.f("ix_waiting_shard_code"), "waiting", ["shard", "code"])
