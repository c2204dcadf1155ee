"""Times assignment and its peers in Python; ``latchwork bench assign`` runs it.

Peers that are not installed are left out.
"""
