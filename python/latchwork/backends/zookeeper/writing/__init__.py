"""Writes to ZooKeeper. Each is compiled into one multi from the known states of its keys, and again if they were
outdated.

The backend calls the writer, and sessions create their marker with ``prepare``.
"""
