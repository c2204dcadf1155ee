"""Who is told of a store's calls and sessions, and of a session's states; `metrics.py` is a door: `StoreMetrics`.

`latchwork.store` exports the observer; the rest stays inside.
"""
