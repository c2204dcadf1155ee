"""Locks that outlive their process for a TTL: one write renews any number of them."""
