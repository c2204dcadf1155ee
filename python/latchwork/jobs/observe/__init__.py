"""Who is told of starts, ends, rebalances and reads of work pools.

The log of events stays inside.
"""
