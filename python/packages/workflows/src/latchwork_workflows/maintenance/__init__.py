"""A database of workflows looked after: what must never be is found, and what people wrote is carried to another.

How a document is compared, and what a look reads, is kept inside.
"""

from latchwork_workflows.maintenance.carrying import Change, document_of, import_document, missing_bundles
from latchwork_workflows.maintenance.doctor import Doctor, Finding, plain

__all__ = ["Change", "Doctor", "Finding", "document_of", "import_document", "missing_bundles", "plain"]
