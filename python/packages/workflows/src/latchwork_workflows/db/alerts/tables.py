"""The tables of alerts. An alert goes with its run; a channel has no secrets, but their names."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from latchwork_workflows.db.tables import Id, metadata

_OPEN = text("next_at IS NOT NULL")

#: Where alerts go: ``options`` as the kind of the channel has them.
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

#: Something that people are told. ``cause``: what makes it another one of its kind: a moment when the run began, an
#: attempt, an owner of a shard. A test of a channel is of no instance.
alert = Table(
    "alert",
    metadata,
    Column("id", Id, primary_key=True),
    Column("instance", BigInteger, ForeignKey("instance.id", ondelete="CASCADE")),
    Column("code", BigInteger),
    Column("kind", String(12), nullable=False),
    Column("cause", String(80), nullable=False),
    Column("task", String(120), nullable=False, server_default=text("''")),
    Column("at", Float, nullable=False),
    Column("details", JSON, nullable=False),
    UniqueConstraint("instance", "kind", "cause"),
    Index(None, "code", "id"),
)

#: One alert by one channel. ``tries`` are those that failed, ``doubts`` those whose end nobody knows, ``round`` grows
#: when somebody asks for it again; ``next_at``: when it is looked at again, NULL: never.
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
    Index("ix_delivery_open", "next_at", "id", sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index(None, "state", "id"),
)
