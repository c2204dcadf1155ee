"""The parts of ``Simulation``: stand-ins for locks, threads and clocks, thread switches, and their order.

Only ``simulation`` imports it. Users import ``latchwork.testing``.
"""
