"""What happened in a trial: facts of this process and of others, in the order in which they came, judged afterwards.

All times are of the machine's monotonic clock, so that those of several processes can be compared. What a fact is, each
judge says for itself: a dataclass.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any


class Facts:
    """Facts by kind, in order. Safe to share between threads.

    A fact with a ``number`` is put where one of the same number was: a call is a fact when it begins, and once more
    when it has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: dict[type, list[Any]] = defaultdict(list)
        self._numbered: dict[object, int] = {}

    def add(self, fact: Any) -> None:
        with self._lock:
            facts = self._facts[type(fact)]
            number = getattr(fact, "number", None)
            at = len(facts) if number is None else self._numbered.setdefault(number, len(facts))
            facts[at : at + 1] = [fact]

    def of(self, kind: type) -> list[Any]:
        """Those of one kind: the list itself, which grows."""
        return self._facts[kind]

    def take(self, kind: type) -> list[Any]:
        """Those of one kind, which are forgotten here."""
        with self._lock:
            self._numbered.clear()
            return self._facts.pop(kind, [])
