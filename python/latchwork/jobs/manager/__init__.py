"""One node at a time as the manager: it decides who works on what, and writes it down.

Nothing of it is exported.
"""
