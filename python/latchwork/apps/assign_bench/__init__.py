"""Time assignment beside what else Python has; what ``latchwork bench assign`` runs.

Peers that are not installed are left out.
"""
