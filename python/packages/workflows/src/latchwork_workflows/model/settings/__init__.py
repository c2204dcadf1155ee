"""Stored settings: their valid values, and the settings that a definition names.

``validation`` checks the values. ``usage`` finds the settings that a definition names.
"""
