"""Measures how fast items are assigned to workers, for ``latchwork bench assign``, and compares with other libraries.

Libraries that are not installed are left out.
"""
