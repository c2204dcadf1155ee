"""Writes to ZooKeeper: compiled into one multi from what is known of the keys, sent again when that was out of date.

The backend calls the writer, sessions make their marker with ``prepare``; the rest stays inside.
"""
