"""Read-only queries of the pages and the API. Each returns the newest rows first, by key.

No query counts or skips rows of the history. Each uses an index and limits the number of rows it reads.
"""
