"""Commands of the user's own, run as child processes: under a lock, while this process leads, or as a job.

What the command line needs of them are `lock`, `elect` and `command_job`; how a child is kept stays inside.
"""
