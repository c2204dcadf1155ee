"""Migrations from each version of the schema to the next. Columns are added before they are used."""

from latchwork_workflows.db.migrations.upgrade import is_upgrade_needed, upgrade_schema

__all__ = ["is_upgrade_needed", "upgrade_schema"]
