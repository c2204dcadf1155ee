"""The cluster inspected, explained and controlled by programs that are no node of it.

`latchwork.jobs` exports all of it.
"""
