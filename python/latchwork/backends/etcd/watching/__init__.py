"""Watches on etcd: many prefixes over few streams, caught up after each gap.

Only the backend uses it.
"""
