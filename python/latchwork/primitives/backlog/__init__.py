"""Items with names, partitions and sort_keys, each step of which can be part of a caller's transaction.

What claims, doubts and stored items are it shares with the queues; how takers share a partition stays inside.
"""
