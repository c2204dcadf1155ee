"""Who drives protocols besides the thread that calls them: the background, and event loops; and how they wake.

Only ``loop``, ``room``, ``helper`` and ``own_loop`` import asyncio.
"""
