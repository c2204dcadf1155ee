"""The editor of definitions, and the positions of problems in its text.

Nothing is exported here. Import the modules.
"""
