"""Functions by name, payloads that run nothing, slots, group commit: what every system that runs tasks rests on.

It keeps to itself how values become bytes, how exceptions are taken apart, and what runs in a child process.
"""
