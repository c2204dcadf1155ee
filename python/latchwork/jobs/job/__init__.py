"""What a job is, what one run of it is given, and which runs a node starts and stops for its share.

`latchwork.jobs` exports the job and the context; the rest stays inside.
"""
