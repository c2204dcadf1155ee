"""A job, the context that its runs get, and the decision which runs a node starts and stops.

`latchwork.jobs` exports the job and the context; the rest stays inside.
"""
