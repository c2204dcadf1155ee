"""Who drives protocols besides the thread that calls them: the background, and event loops.

Only ``background`` may be imported without asyncio.
"""
