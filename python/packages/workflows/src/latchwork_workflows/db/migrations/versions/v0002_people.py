"""Accounts, their roles, tokens and sessions; the project of an event, and what people did.

Revision 0002, of 2026-11.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_PEOPLE = sa.text("by <> ''")


def upgrade() -> None:
    """Four tables, a column and two indexes."""
    op.add_column("event", sa.Column("project", sa.String(length=100), server_default=sa.text("''"), nullable=False))
    op.create_index("ix_event_people", "event", ["id"], sqlite_where=_PEOPLE, postgresql_where=_PEOPLE)
    op.create_index(op.f("ix_instance_code_state_id"), "instance", ["code", "state", "id"])
    op.create_table(
        "account",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("password", sa.String(length=300), nullable=True),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_account")),
    )
    op.create_table(
        "account_role",
        sa.Column("account", sa.String(length=100), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=10), nullable=False),
        _of_account("account_role"),
        sa.PrimaryKeyConstraint("account", "project", name=op.f("pk_account_role")),
    )
    op.create_table(
        "api_token",
        sa.Column("id", _ID, nullable=False),
        sa.Column("account", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=10), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("used_at", sa.Float(), nullable=True),
        _of_account("api_token"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_token_digest")),
    )
    op.create_index(op.f("ix_api_token_account"), "api_token", ["account"])
    op.create_table(
        "web_session",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("account", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("csrf", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        _of_account("web_session"),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_web_session")),
    )
    op.create_index(op.f("ix_web_session_account"), "web_session", ["account"])
    op.create_index(op.f("ix_web_session_expires_at"), "web_session", ["expires_at"])


def _of_account(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["account"], ["account.name"], name=op.f(f"fk_{table}_account"), ondelete="CASCADE")
