"""Numbers and budgets in one key: counter, sequence, rate limiter.

The cell and the window stay inside.
"""
