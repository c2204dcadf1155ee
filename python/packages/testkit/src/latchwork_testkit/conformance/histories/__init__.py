"""Random calls of several clients, recorded and judged for linearizability.

The connections are cut meanwhile if the backend has a server.
"""
