"""Numbers in one key: counter, sequence, rate limiter."""
