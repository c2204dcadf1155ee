"""The tables of rules that are of no shard: outputs that are known already, and grants of projects."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, String, Table

from latchwork_workflows.db.tables import metadata

#: Outputs of tasks that succeeded, by the sha256 of all that they were made of. Any shard writes them.
result_cache = Table(
    "result_cache",
    metadata,
    Column("key", String(64), primary_key=True),
    # Whose task it was; it may be gone.
    Column("instance", BigInteger, nullable=False),
    Column("made_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("outputs", JSON, nullable=False),
    Index(None, "expires_at"),
)

#: Which projects may use the workflows of a project; the grantee that is empty stands for all.
project_grant = Table(
    "project_grant",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("grantee", String(100), primary_key=True),
    Column("role", String(10), nullable=False),
)
