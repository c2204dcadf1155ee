"""Helpers that every layer uses. They know nothing of stores and do no I/O."""
