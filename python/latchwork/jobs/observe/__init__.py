"""The observers of a node: it tells them of runs, rebalances and reads of pools, and answers with figures and health.

`latchwork.jobs` exports the observer and its records; the log of events stays inside.
"""
