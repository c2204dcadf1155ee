"""What the job cluster keeps in the store: keys, packed sets, members, notes.

Only formats, and the reads and writes of them; no decision.
"""
