"""Numbers in one key: counter, sequence, rate limiter.

``latchwork.primitives`` exports the public names. ``cell`` has the transaction of counter and sequence.
"""
