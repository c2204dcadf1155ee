"""Logs of attempts, and what else workers fetch: a folder, or any object store. Neither database nor store holds them.

It keeps to itself how a log is cut into objects, and how secrets are masked.
"""

from latchwork_workflows.logs.keeping import AttemptLog, Health
from latchwork_workflows.logs.masking import Mask
from latchwork_workflows.logs.places import LogMissing, LogPart, LogStore, LogStoreMismatch, clean_text
from latchwork_workflows.logs.urls import open_logs

__all__ = [
    "AttemptLog",
    "Health",
    "LogMissing",
    "LogPart",
    "LogStore",
    "LogStoreMismatch",
    "Mask",
    "clean_text",
    "open_logs",
]
