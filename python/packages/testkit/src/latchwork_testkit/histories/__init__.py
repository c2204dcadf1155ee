"""Histories of calls on a store, and the check whether they are linearizable.

- ``recorder``: a store whose calls are recorded, with their answers and times.
- ``clients``: threads that make random calls through recorders.
- ``checker``: judges a history, and makes a bad one smaller.
"""
