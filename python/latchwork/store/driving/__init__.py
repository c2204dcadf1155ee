"""Ways to run a protocol, which is a coroutine that awaits only ``Step`` objects, in background threads or event loops.

Only ``loop``, ``helper`` and ``dedicated_loop`` import asyncio.
"""
