"""One play of a primitive: a victim, and another player, on a stage that may see many plays.

The victim is a process of its own, whose connections can be hurt where there is one server; the other player is in this
process, and goes straight to the servers.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import defaultdict

import latchwork
from latchwork.errors import OutcomeUnknown, Unavailable
from patience import Deadline, eventually
from through_loop import driver
from trials.primitives.owners import PATIENCE_S
from trials.primitives.players import make
from trials.remote import Remote
from trials.stage import Stage

#: Of the player that nothing is meant to happen to, however busy the machine is.
OTHERS_TTL_S = 30.0
_CALL_TIMEOUT_S = 2.0
_TROUBLE = (Unavailable, OutcomeUnknown)
_NAME = "play"


class Play:
    """One thread at a time.

    Attributes:
        ttl_s: of the victim's session and locks.
        marks: role to the moments at which a looping player of that role had done its work once more.
    """

    def __init__(self, stage: Stage, primitive: str, ttl_s: float) -> None:
        self.stage = stage
        self.primitive = primitive
        self.ttl_s = ttl_s
        self.root = f"play-{uuid.uuid4().hex[:12]}"
        self.marks: dict[str, list[float]] = defaultdict(list)
        self._open = contextlib.ExitStack()

    def __enter__(self):
        if self.stage.ways is None and len(self.stage.members) == 1:
            self.stage.lay_ways(1)
        with contextlib.ExitStack() as opened:
            self._open = opened
            self.other = self.another_player("other")
            self.store = self.other.store
            self.other.prepare()
            self.victim = self.another_victim()
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_):
        self._open.close()

    def another_victim(self):
        """A process that plays the victim: the first, or the next one after it was killed."""
        arguments = (self._url(self.ttl_s, way=0), self.primitive, _NAME, "victim", self.ttl_s, driver())
        self.victim = Remote("trials.primitives.players:serve", *arguments, report=self.marks["victim"].append)
        self._open.callback(self.victim.kill)  # what it leaves behind has to go by itself
        return self.victim

    def another_player(self, role):
        """A player in this process, with a client of its own."""
        store = self._open.enter_context(latchwork.connect(self._url(OTHERS_TTL_S)))
        player = make(self.primitive, store, _NAME, role, OTHERS_TTL_S, self.marks[role].append)
        self._open.callback(player.close)
        return player

    def _url(self, ttl_s, way=None):
        return self.stage.url(self.root, way, session_ttl_s=ttl_s, call_timeout_s=_CALL_TIMEOUT_S)


def until(condition, what, timeout_s=PATIENCE_S):
    """Wait until it is true; its value. Trouble with the server is waited out."""

    def tried():
        try:
            return condition()
        except _TROUBLE:
            return None

    return eventually(tried, timeout_s, what)


def insist(step):
    """Do it, again and again while the server cannot be reached."""
    deadline = Deadline(PATIENCE_S)
    while True:
        try:
            return step()
        except _TROUBLE:
            if deadline.has_passed:
                raise
            time.sleep(0.05)
