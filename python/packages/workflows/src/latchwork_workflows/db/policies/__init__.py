"""Rows of what concerns more than one instance of a workflow: backfills, and whose turn it is.

For masters only: each is written under the guard of a shard.
"""
