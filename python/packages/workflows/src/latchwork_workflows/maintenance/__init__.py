"""Maintenance of a database of workflows: finds inconsistencies, and exports and imports definitions and settings."""

from latchwork_workflows.maintenance.doctor import Doctor, Finding, to_mapping
from latchwork_workflows.maintenance.transfer import Change, export_document, find_missing_bundles, import_document

__all__ = ["Change", "Doctor", "Finding", "export_document", "find_missing_bundles", "import_document", "to_mapping"]
