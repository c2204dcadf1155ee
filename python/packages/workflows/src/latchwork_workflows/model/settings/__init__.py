"""Stored settings: their valid values, and the settings that a definition names."""
