"""Numbers stored at one key: counter, sequence, rate limiter.

``latchwork.primitives`` exports the public names. ``shared_number`` has the transaction of counter and sequence.
"""
