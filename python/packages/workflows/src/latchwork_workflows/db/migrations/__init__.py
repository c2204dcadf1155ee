"""Migrations from each version of the schema to the next. Columns are added before they are used."""

from latchwork_workflows.db.migrations.upgrade import needs_upgrade, upgrade_schema

__all__ = ["needs_upgrade", "upgrade_schema"]
