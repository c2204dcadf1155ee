"""Barriers: several parties wait for each other.

The rounds and their phases stay inside.
"""
