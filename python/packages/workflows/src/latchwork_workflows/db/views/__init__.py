"""What pages and the API read: rows of one question each, the newest first, by key. Nothing here writes.

No question counts rows of history, or skips over them; each has an index, and says at most how many rows it reads.
"""
