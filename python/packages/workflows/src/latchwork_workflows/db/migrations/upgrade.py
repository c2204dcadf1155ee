"""Upgrades a database to the schema of this version, by one process at a time and in one transaction."""

from __future__ import annotations

import logging
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from latchwork_workflows.db.database import Database
from latchwork_workflows.errors import SchemaTooNew

_log = logging.getLogger(__name__)
#: The advisory lock that serializes concurrent upgrades on PostgreSQL.
_LOCK = 0x6C617463


def upgrade_schema(database: Database) -> str:
    """Create the tables, or upgrade them to the schema of this version. Idempotent.

    Returns:
        The revision of the schema.
    Raises:
        SchemaTooNew: A later version has changed the schema.
        DatabaseUnavailable: The database cannot be reached.
    """
    scripts = _scripts()
    head = str(scripts.get_current_head())
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
            # No process takes over from a migration, which may pause between two statements on a busy machine.
            connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        there = _current_revision(database, connection, scripts)
        if there != head:
            config = Config(attributes={"connection": connection})
            config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
            command.upgrade(config, "head")
            _log.info("database %s is at revision %s now, %s before", database.url, head, there or "empty")
    return head


def is_upgrade_needed(database: Database) -> bool:
    """Return whether the schema is older than this version needs.

    Raises:
        SchemaTooNew: A later version has changed the schema.
    """
    scripts = _scripts()
    with database.read() as connection:
        return _current_revision(database, connection, scripts) != scripts.get_current_head()


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent))


def _current_revision(database: Database, connection: sa.Connection, scripts: ScriptDirectory) -> str | None:
    there = MigrationContext.configure(connection).get_current_revision()
    if there is not None and there not in {each.revision for each in scripts.walk_revisions()}:
        raise SchemaTooNew(
            f"database {database.url} is at revision {there}, which this version does not know; "
            "use the version that made it, or a later one"
        )
    return there
