"""Processes that tests ask about."""

from __future__ import annotations

import psutil


def lives(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
