"""A node as a worker: it follows its shares, locks items, and runs jobs on them.

Nothing of it is exported but what a run counts.
"""
