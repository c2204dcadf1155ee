"""Arguments, results and exceptions as bytes that run nothing where they are read.

It keeps to itself how a value becomes bytes, and how it is made to fit an annotation.
"""
