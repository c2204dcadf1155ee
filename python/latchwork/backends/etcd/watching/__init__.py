"""Watches on etcd. Many prefixes share one stream, and missed changes are read after each disconnect.

Only the backend uses this package.
"""
