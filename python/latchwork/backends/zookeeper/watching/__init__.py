"""Watches of ZooKeeper: the server's persistent ones for prefixes, its one-shot ones for single session-bound keys.

The backend calls the hub; the rest stays inside.
"""
