"""Histories of calls on a store, and the check whether they are linearizable.

- ``recorder``: a store that records its calls, with their answers and times.
- ``clients``: threads that make random calls through recorders.
- ``checker``: judges a history, and shortens a bad one.
"""
