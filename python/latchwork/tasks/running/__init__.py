"""One run of a task: its context, its call, its slot; and the loop that claims, runs and finishes.

The code that runs in child processes is private to this package.
"""
