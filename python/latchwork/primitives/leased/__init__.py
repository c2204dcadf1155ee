"""Locks that outlive their process for a TTL: one write renews any number of them.

Everything but the lock, its keeper and what reads them from outside stays inside.
"""
