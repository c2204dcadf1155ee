"""Encoding of arguments, results and exceptions. Decoding runs no code from the bytes, unless pickles are allowed.

Encoding of values, and validation against annotations, are private to this package.
"""
