"""Workers: they take attempts from the store, run each in a child of its own, and say how it ended.

It keeps to itself how a child is started, heard and ended. A worker knows the store and the log store, no database.
"""

from latchwork_workflows.secrets import CHANNELS, SHARED, SecretMissing, Secrets, write_secret
from latchwork_workflows.worker.options import WorkerOptions
from latchwork_workflows.worker.worker import Worker

__all__ = ["CHANNELS", "SHARED", "SecretMissing", "Secrets", "Worker", "WorkerOptions", "write_secret"]
