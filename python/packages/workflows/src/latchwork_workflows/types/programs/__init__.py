"""Programs that run in the child process of a task. They are started by path, so they import nothing of ours.

They are copied, never imported by the package.
"""
