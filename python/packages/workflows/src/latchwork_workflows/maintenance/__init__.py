"""Maintenance of a database of workflows: finds inconsistencies, and exports and imports definitions and settings."""

from latchwork_workflows.maintenance.doctor import Doctor, Finding, as_mapping
from latchwork_workflows.maintenance.transfer import Change, export_document, import_document, missing_bundles

__all__ = ["Change", "Doctor", "Finding", "as_mapping", "export_document", "import_document", "missing_bundles"]
