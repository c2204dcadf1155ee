"""Maintenance of a database of workflows: finds inconsistencies, and exports and imports definitions and settings."""

from latchwork_workflows.maintenance.doctor import Doctor, Finding, plain
from latchwork_workflows.maintenance.transfer import Change, document_of, import_document, missing_bundles

__all__ = ["Change", "Doctor", "Finding", "document_of", "import_document", "missing_bundles", "plain"]
