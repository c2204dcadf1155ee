"""Writes to etcd: planned as one transaction, sent merged where possible, settled when the answer is lost.

The backend calls the writer; the rest stays inside.
"""
