"""A node that runs tasks: its shifts, the lanes that it takes from, how a run ends, and what the dead have left.

It keeps to itself what marks, views and loads mean to it.
"""
