"""Writes to etcd. Each is planned as one transaction, and its outcome is found out if the answer is lost.

Only the backend uses this package.
"""
