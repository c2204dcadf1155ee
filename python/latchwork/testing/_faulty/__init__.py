"""What a ``FaultyStore`` is made of: its faults, and the backend, the watches and the stale reads that meet with them.

``faults`` alone imports it, and hands out its public names; users import ``latchwork.testing``.
"""
