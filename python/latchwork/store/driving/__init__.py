"""Drivers of protocols other than the calling thread: background threads and event loops, and how they are woken.

Only ``loop``, ``helper`` and ``dedicated_loop`` import asyncio.
"""
