"""Stores in memory, by name: shared by the stores of one process, gone when the last of them closes."""

from __future__ import annotations

import os

from latchwork.backends.embedded.connection import Database, memory_database
from latchwork.backends.embedded.watches import Poller
from latchwork.interrupts import mutex


class SharedMemory:
    """One named database and the pollers of the stores on it. Safe to share between threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.database: Database = memory_database(name)
        self.users = 0
        self._pollers: tuple[Poller, ...] = ()
        self._lock = mutex()

    def add(self, poller: Poller) -> None:
        """Notify this poller of every commit from now on."""
        with self._lock:
            self._pollers = (*self._pollers, poller)

    def remove(self, poller: Poller) -> None:
        """Stop notifying this poller."""
        with self._lock:
            self._pollers = tuple(each for each in self._pollers if each is not poller)

    def notice_commit(self) -> None:
        """Tell every poller that something was committed."""
        for poller in self._pollers:
            poller.notice_commit()

    def nudge(self) -> None:
        """Have every poller look at once."""
        for poller in self._pollers:
            poller.nudge()


_lock = mutex()
_by_name: dict[str, SharedMemory] = {}


def join_memory(name: str) -> SharedMemory:
    """The database of that name, new when nobody uses it. Each call needs its ``leave_memory``."""
    with _lock:
        shared = _by_name.get(name)
        if shared is None:
            shared = _by_name[name] = SharedMemory(name)
        shared.users += 1
        return shared


def leave_memory(shared: SharedMemory) -> None:
    """Give it up; the last one out drops the data."""
    with _lock:
        shared.users -= 1
        if shared.users:
            return
        _by_name.pop(shared.name, None)
    shared.database.close()


def _start_empty_in_child() -> None:
    global _lock  # noqa: PLW0603 - the parent's may be held by a thread that the child does not have
    _lock = mutex()
    _by_name.clear()


os.register_at_fork(after_in_child=_start_empty_in_child)
