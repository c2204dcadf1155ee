"""Cron progress: which fire times of an item have started, written down before they start.

A door for programs that show it; how nodes claim and write progress stays inside.
"""

from latchwork.jobs.cron.progress import progress_of

__all__ = ["progress_of"]
