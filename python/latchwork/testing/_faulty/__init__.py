"""The parts of ``FaultyStore``: its faults, backend, watches and stale reads.

Only ``faults`` imports it, and exports its public names. Users import ``latchwork.testing``.
"""
