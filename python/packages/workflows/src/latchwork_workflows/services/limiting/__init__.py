"""Task groups and limits of projects: how large they are, who holds their slots, and who waits for one.

Nothing is exported here; see the modules.
"""
