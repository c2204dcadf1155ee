"""Logs of attempts and other files for workers: in a folder or an object store, not in the database or the store.

How logs are split into objects and how secrets are masked is internal.
"""

from latchwork_workflows.logs.attempt_log import AttemptLog, LogStoreHealth
from latchwork_workflows.logs.mask import Mask
from latchwork_workflows.logs.store import LogMissing, LogPart, LogStore, LogStoreMismatch, clean_text
from latchwork_workflows.logs.urls import open_logs

__all__ = [
    "AttemptLog",
    "LogMissing",
    "LogPart",
    "LogStore",
    "LogStoreHealth",
    "LogStoreMismatch",
    "Mask",
    "clean_text",
    "open_logs",
]
