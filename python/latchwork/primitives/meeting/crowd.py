"""Who follows the arrivals at a barrier, and who ends a phase once all are there. No I/O.

With few members all follow, and the last to arrive ends the phase. With more than ``MANY`` each member would be told
of each arrival, n x n events: there each draws, before it arrives, whether it follows, so that about ``FOLLOWERS`` do.
They say so in their arrivals, and the first of them ends the phase. All others watch the board alone; as their wait
goes on they draw again now and then, so that a phase ends when every follower has died. Nothing is stored for this but
a word in an arrival, so nothing of it can be left behind.
"""

from __future__ import annotations

import random

from latchwork.primitives.meeting.phases import MANY, Board, follows, read_arrival
from latchwork.store.watch import Batch

#: So many follow the arrivals, on average: with no follower at all, which happens once in e^8 times, see ``AGAIN_S``.
FOLLOWERS = 8
#: Who watches the board alone draws again after such a time, then after twice that time, and so on.
AGAIN_S = (2.0, 5.0)


def is_many(parties: int) -> bool:
    """True when not everybody can follow the arrivals."""
    return parties > MANY


def drawn(parties: int) -> bool:
    """Whether one of so many is to follow the arrivals."""
    return not is_many(parties) or random.random() < FOLLOWERS / parties


class Arrivals:
    """Follows a barrier until the phase has ended or everybody is here. One thread only.

    Attributes:
        board: the board, once the phase has ended.
    """

    def __init__(self, board_key: str, arrivals: str, parties: int, phase: int) -> None:
        self.board: Board | None = None
        self._board_key = board_key
        self._arrivals = arrivals
        self._parties = parties
        self._phase = phase
        self._here: dict[str, int] = {}
        self._followers: dict[str, int] = {}

    def __call__(self, batch: Batch) -> bool:
        """Take in a batch of changes; True once there is nothing to wait for."""
        for change in batch:
            entry = change.entry
            if entry is None:
                continue
            if change.key == self._board_key:
                board = Board.of(entry)
                self.board = board if board.phase > self._phase else None
            elif change.key.rpartition("/")[0] == self._arrivals and read_arrival(entry)[1] == self._phase:
                self._here[change.key] = entry.token
                if is_many(self._parties) and follows(entry):
                    self._followers[change.key] = entry.token
        return self.board is not None or len(self._here) >= self._parties

    @property
    def here(self) -> set[str]:
        """The members that have arrived."""
        return {key.rpartition("/")[2] for key in self._here}

    def is_first_to_end(self, key: str) -> bool:
        """True for the arrival whose member ends the phase: of few the last one, of many the first that follows."""
        if is_many(self._parties):
            return key in self._followers and self._followers[key] <= min(self._followers.values())
        return self._here.get(key, 0) >= max(self._here.values(), default=0)


class EndOf:
    """Follows the board of a barrier until a phase has ended. One thread only.

    Attributes:
        board: the board, once it has.
    """

    def __init__(self, phase: int) -> None:
        self.board: Board | None = None
        self._phase = phase

    def __call__(self, batch: Batch) -> bool:
        """Take in a batch of changes; True once the phase has ended."""
        entries = [change.entry for change in batch if change.entry is not None]
        if entries:
            board = Board.of(entries[-1])
            self.board = board if board.phase > self._phase else None
        return self.board is not None
