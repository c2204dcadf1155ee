"""Writes to etcd: planned as one transaction, and settled when the answer is lost.

Only the backend uses it.
"""
