"""One file for each step; files that were released do not change.

A step adds, and a later release removes what nothing reads any more.
"""
