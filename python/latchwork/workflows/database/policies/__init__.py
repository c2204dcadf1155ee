"""Rows of what concerns more than one instance of a workflow: backfills, and whose turn it is. For masters only."""
