"""Programs that run in the child process of a task. They are started by path, and import nothing of latchwork.

They are copied, never imported by the package.
"""
