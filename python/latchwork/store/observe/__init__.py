"""Observers of a store's calls and sessions, and of a session's states.

`metrics.py` is imported lazily: `StoreMetrics`. `latchwork.store` exports the observer; the rest is internal.
"""
