"""What a shard's master does besides advancing: attempts that nobody took, outputs that are known, who may start.

For the master alone; each part works in the transaction that the guard has begun.
"""
