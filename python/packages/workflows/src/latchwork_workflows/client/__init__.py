"""``WorkflowClient``: a client for workflows, over HTTP or in-process.

Importing it loads neither FastAPI nor SQLAlchemy.
"""

from latchwork_workflows.client.backfills import BackfillRef
from latchwork_workflows.client.client import WorkflowClient
from latchwork_workflows.client.runs import RunRef

__all__ = ["BackfillRef", "RunRef", "WorkflowClient"]
