"""Groups: who is there, in numbered views that all members see in the same order.

Membership stays inside.
"""
