"""Ways to run a step coroutine (see ``latchwork.store.steps``): in background threads and in event loops.

Only ``loop``, ``helper`` and ``dedicated_loop`` import asyncio.
"""
