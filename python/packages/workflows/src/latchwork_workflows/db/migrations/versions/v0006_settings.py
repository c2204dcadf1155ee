"""Environments and connections of a project, or of all; the secret of a connection has a column of its own.

Revision 0006, of 2026-11.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0007"
branch_labels = None
depends_on = None


#: As they are before: these columns alone, so that the values come as they are.
_ENVIRONMENT = sa.table("environment", sa.column("name", sa.String), sa.column("variables", sa.JSON))
_CONNECTION = sa.table(
    "connection", sa.column("name", sa.String), sa.column("url", sa.String), sa.column("options", sa.JSON)
)


def upgrade() -> None:
    """Two tables made anew, as what is there is of all projects: SQLite cannot change a primary key."""
    there = op.get_bind()
    environments = there.execute(sa.select(_ENVIRONMENT)).all()
    connections = there.execute(sa.select(_CONNECTION)).all()
    op.drop_table("environment")
    op.drop_table("connection")
    environment = op.create_table(
        "environment",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("variables", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_environment")),
    )
    connection = op.create_table(
        "connection",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("url", sa.String(length=1000), nullable=False),
        sa.Column("secret", sa.String(length=100), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_connection")),
    )
    for each in environments:
        there.execute(sa.insert(environment).values(project="", name=each.name, variables=each.variables))
    for each in connections:
        secret = each.options.get("secret", "") if isinstance(each.options, dict) else ""
        there.execute(sa.insert(connection).values(project="", name=each.name, url=each.url, secret=str(secret)[:100]))
