"""Watches on etcd: many prefixes over few streams, caught up after each gap.

The backend calls the watches; the rest stays inside.
"""
