"""Workers: claim attempts from the store, run each in a child process, and report the results.

A worker uses the store and the log store, but no database.
"""

from latchwork_workflows.secrets import CHANNELS, SHARED, SecretMissing, Secrets, write_secret
from latchwork_workflows.worker.options import WorkerOptions
from latchwork_workflows.worker.worker import Worker

__all__ = ["CHANNELS", "SHARED", "SecretMissing", "Secrets", "Worker", "WorkerOptions", "write_secret"]
