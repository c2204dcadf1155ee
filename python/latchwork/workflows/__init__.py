"""Workflows: graphs of tasks that run by the clock or by command, are seen, and can be paused, mended and run again."""
