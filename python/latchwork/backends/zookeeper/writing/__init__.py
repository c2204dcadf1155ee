"""Writes to ZooKeeper: compiled into one multi from what is known of the keys, and compiled again if that was outdated.

The backend calls the writer, and sessions create their marker with ``prepare``.
"""
