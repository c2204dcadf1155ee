"""Ownership in order of arrival: tickets, and the locks, latches and elections that queue with them.

Tickets, turns and holds stay inside.
"""
