"""Observers of a store's calls and sessions, and metrics made of them.

``latchwork.store`` exports the observer. Import ``StoreMetrics`` from ``metrics.py``. The rest is internal.
"""
