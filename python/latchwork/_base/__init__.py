"""Helpers for every layer. They do not know about stores and do no I/O."""
