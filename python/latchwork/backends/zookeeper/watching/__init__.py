"""Watches of ZooKeeper: persistent ones for prefixes, one-shot ones for single session-bound keys.

Only the backend uses it.
"""
