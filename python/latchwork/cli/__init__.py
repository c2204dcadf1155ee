"""The command line, an extra: `entry.py` is the console script, `main.py` puts the commands together.

One file per command; `options.py`, `outcome.py`, `cluster.py` and `text.py` are what the commands share.
"""
