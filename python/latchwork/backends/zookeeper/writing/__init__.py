"""Writes to ZooKeeper. Each is compiled into one multi from the known states of its keys.

It is compiled again if these states were outdated. The backend calls the writer, and sessions create their marker with
``create_write_counter``.
"""
