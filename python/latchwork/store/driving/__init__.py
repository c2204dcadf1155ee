"""Who drives protocols besides the thread that calls them: the background, and event loops; and how they wake.

Only ``loop`` and ``helper`` import asyncio.
"""
