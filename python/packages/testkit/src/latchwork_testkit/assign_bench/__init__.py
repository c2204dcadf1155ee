"""Times assignment and its peers in Python, for ``latchwork bench assign``.

Peers that are not installed are left out.
"""
