"""Fire times: which one an item runs next, and how that is written down before it starts.

Nothing of it is exported; runs ask it for their turns.
"""
