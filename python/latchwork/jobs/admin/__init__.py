"""Inspection, explanation and control of a cluster by programs that are not nodes of it.

``latchwork.jobs`` exports all of it.
"""
