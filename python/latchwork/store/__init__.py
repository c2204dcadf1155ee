"""Stores: keys, sessions, transactions, watches and mirrors, on any backend."""

from latchwork.store.backoff import Backoff
from latchwork.store.connect import URL_VARIABLE, connect, session_ttl_s
from latchwork.store.mirror import Mirror
from latchwork.store.observe.calls import CallInfo, StoreObserver
from latchwork.store.observers import Observers
from latchwork.store.pipeline import Pipeline
from latchwork.store.session import Session
from latchwork.store.store import Store, system_namespace
from latchwork.store.transaction import Tx
from latchwork.store.watch import Watch

__all__ = [
    "URL_VARIABLE",
    "Backoff",
    "CallInfo",
    "Mirror",
    "Observers",
    "Pipeline",
    "Session",
    "Store",
    "StoreObserver",
    "Tx",
    "Watch",
    "connect",
    "session_ttl_s",
    "system_namespace",
]
