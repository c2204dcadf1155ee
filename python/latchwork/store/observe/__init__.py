"""Observers of a store's calls and sessions, and of a session's states.

`latchwork.store` exports the observer. Import `StoreMetrics` from `metrics.py`. The rest is internal.
"""
