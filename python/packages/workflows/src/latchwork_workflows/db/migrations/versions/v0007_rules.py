"""Rules: outputs that are known, grants of projects, and backfills that lead to others.

Revision 0007, of 2026-11.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two tables and three columns."""
    op.add_column("attempt", sa.Column("cached_from", sa.BigInteger(), nullable=True))
    op.add_column("instance", sa.Column("fresh", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("backfill", sa.Column("cause", sa.BigInteger(), nullable=True))
    op.create_table(
        "result_cache",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("instance", sa.BigInteger(), nullable=False),
        sa.Column("made_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("outputs", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_result_cache")),
    )
    op.create_index(op.f("ix_result_cache_expires_at"), "result_cache", ["expires_at"])
    op.create_table(
        "project_grant",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("grantee", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=10), nullable=False),
        sa.PrimaryKeyConstraint("project", "grantee", name=op.f("pk_project_grant")),
    )
