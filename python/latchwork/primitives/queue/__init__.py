"""Queues of items that one taker gets, in order of arrival or priority.

Items, putting and taking stay inside.
"""
