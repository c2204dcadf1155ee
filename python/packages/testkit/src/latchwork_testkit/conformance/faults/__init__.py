"""Faults of the network and of the server, as a store on the backend sees them.

The network is a proxy in front of the server. Tests of the server need a launcher with ``kill`` and ``start``.
"""
