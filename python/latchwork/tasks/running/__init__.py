"""One run of a task: its context, its call, its slot; and the loop that claims, runs and finishes.

It keeps to itself what runs in a child process.
"""
