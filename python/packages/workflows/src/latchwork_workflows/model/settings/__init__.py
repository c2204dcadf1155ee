"""Stored settings: their valid values, and the settings that a definition names.

``checks`` validates the values. ``naming`` finds the names in a definition.
"""
