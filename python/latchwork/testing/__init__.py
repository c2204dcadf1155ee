"""Helpers for tests of code that uses latchwork; nothing in latchwork outside this package imports it."""
