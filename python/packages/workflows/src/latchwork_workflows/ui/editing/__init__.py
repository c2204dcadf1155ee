"""The editor of definitions, and where in its text a problem is.

Nothing is exported here; see the modules.
"""
