"""The faults of the plays of primitives: each a context, and what becomes of what the victim's session held."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager as Context
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from backends_table import SHARED as BACKENDS
from latchwork.errors import LatchworkError
from trials import fault
from trials.fault import frozen, held, killed, refused
from trials.primitives.play import Play, insist

#: What becomes of the victim's session.
Fate = Literal["dead", "lost", "kept", "either"]
#: Seconds of a TTL that is to run out, and of one that must not.
SHORT_TTL_S, LONG_TTL_S = 1.0, 8.0
#: Seconds of a cut that a session outlives.
CUT_S = 1.5
_LEADER_S = 60.0


@dataclass(frozen=True)
class Fault(fault.Fault):
    """One fault of these plays; ``inflict`` gives a context, at the end of which it is healed.

    Attributes:
        fate: of the victim's session: ``dead`` with its process, ``lost``, ``kept``, or ``either``.
        tells: the victim knows by its own clock that it has lost, before others can own what it had.
        waits: the victim does not own it but waits for it; only of what one can own.
    """

    fate: Fate = "lost"
    tells: bool = True
    waits: bool = False

    @property
    def ttl_s(self) -> float:
        """Of sessions and locks."""
        return LONG_TTL_S if self.fate == "kept" else SHORT_TTL_S


def _kill(play: Play) -> Context[None]:
    play.victim.kill()
    return nullcontext()


@contextlib.contextmanager
def _freeze(play: Play) -> Iterator[None]:
    """Stop it; not inside a transaction on a file, which would stop everybody (SQLite has no other way)."""
    while True:
        play.victim.pause()
        try:
            play.store.put("probe", b"")
        except LatchworkError:
            play.victim.resume()
            time.sleep(0.05)
        else:
            break
    yield
    play.victim.resume()


def _restart(play: Play) -> Context[None]:
    with killed(play.stage.server):
        return nullcontext()


def _without_leader(blow: Callable[[Any], Context[None]]) -> Callable[[Play], Context[None]]:
    """Until the others have another one; clients that it serves have to find out."""

    @contextlib.contextmanager
    def inflict(play: Play) -> Iterator[None]:
        server = play.stage.server
        with blow(server.leader(timeout_s=_LEADER_S)):
            server.leader(timeout_s=_LEADER_S)
            yield

    return inflict


def _steal_session(play: Play) -> Context[None]:
    """End the victim's session from outside, as an operator could."""
    with contextlib.closing(play.stage.raw(play.root)) as raw:
        raw.revoke(insist(play.victim.secret))
    return nullcontext()


def _cut(play: Play) -> Context[Any]:
    return refused(play.stage.ways)


def _cut_briefly(play: Play) -> Context[None]:
    with _cut(play):
        time.sleep(CUT_S)
    return nullcontext()


def _silence(play: Play) -> Context[Any]:
    """Nothing gets through; what was sent meanwhile arrives when it is over, so writes land late."""
    return held(play.stage.ways)


FAULTS = (
    Fault("holder killed", _kill, BACKENDS, fate="dead"),
    Fault("holder frozen past its TTL", _freeze, BACKENDS),
    Fault("server restarted", _restart, fate="either"),
    Fault("leader of three killed", _without_leader(killed), members=3, fate="either"),
    Fault("leader of three frozen, then woken", _without_leader(frozen), members=3, fate="either"),
    Fault("session expired from outside", _steal_session, tells=False),
    Fault("connection cut for less than the TTL", _cut_briefly, fate="kept"),
    Fault("connection cut for more than the TTL", _cut),
    Fault("network silent for more than the TTL", _silence),
    Fault("waiter killed", _kill, BACKENDS, fate="dead", waits=True),
    Fault("waiter frozen past its TTL", _freeze, BACKENDS, waits=True),
    Fault("connection of a waiter cut for more than the TTL", _cut, waits=True),
)
BY_NAME = {fault.name: fault for fault in FAULTS}
