"""Records the calls of several clients on a store, and checks whether the history is linearizable.

- ``recorder``: a store that records each call with its answer and its times.
- ``clients``: threads that make random calls through recorders.
- ``checker``: checks a history, and minimizes one that is not linearizable.
"""
