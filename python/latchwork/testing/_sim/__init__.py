"""What a ``Simulation`` is made of: locks, threads and clocks that stand in, the threads' turns, and their order.

``simulation`` alone imports it; users import ``latchwork.testing``.
"""
