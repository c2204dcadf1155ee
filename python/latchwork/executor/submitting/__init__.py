"""From a call to its future: tasks are stored many at a time, and their outcomes are collected.

It keeps to itself how the answer to a lost write is found, and how a lost session is begun anew.
"""
