"""What a node tells its observers, and what it answers them: runs, rebalances, reads of pools, figures, health.

`latchwork.jobs` exports the observer and its records; the log of events stays inside.
"""
