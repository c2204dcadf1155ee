"""The faults: how each strikes and is healed, and what becomes of what the victim's session held."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from latchwork.errors import LatchworkError
from trials.primitives.stage import BACKENDS, SERVERS, Stage, steal_session

#: What becomes of the victim's session.
Fate = Literal["dead", "lost", "kept", "either"]
#: Seconds of a TTL that is to run out, and of one that must not.
SHORT_TTL_S, LONG_TTL_S = 1.0, 8.0
#: Seconds of a cut that a session outlives.
CUT_S = 1.5


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: as a phrase.
        strike: begins it.
        fate: of the victim's session: ``dead`` with its process, ``lost``, ``kept``, or ``either``.
        heal: ends it.
        members: servers.
        backends: where it applies.
        tells: the victim knows by its own clock that it has lost, before others can own what it had.
        waits: the victim does not own it but waits for it; only of what one can own.
    """

    name: str
    strike: Callable[[Stage], None]
    fate: Fate
    heal: Callable[[Stage], None] = lambda _stage: None
    members: int = 1
    backends: tuple[str, ...] = SERVERS
    tells: bool = True
    waits: bool = False

    @property
    def ttl_s(self) -> float:
        """Of sessions and locks."""
        return LONG_TTL_S if self.fate == "kept" else SHORT_TTL_S


def _kill(stage: Stage) -> None:
    stage.victim.kill()


def _freeze(stage: Stage) -> None:
    """Stop it; not inside a transaction on a file, which would stop everybody (SQLite has no other way)."""
    while True:
        stage.victim.freeze()
        try:
            stage.store.put("probe", b"")
        except LatchworkError:
            stage.victim.wake()
            time.sleep(0.05)
        else:
            return


def _wake(stage: Stage) -> None:
    stage.victim.wake()


def _restart(stage: Stage) -> None:
    stage.scene.server.kill()
    stage.scene.server.restart()


def _kill_leader(stage: Stage) -> None:
    stage.scene.server.leader(timeout_s=60.0).kill()
    stage.scene.server.leader(timeout_s=60.0)


def _freeze_leader(stage: Stage) -> None:
    """Until the others have another one; clients that it serves have to find out."""
    stage.scene.server.leader(timeout_s=60.0).pause()
    stage.scene.server.leader(timeout_s=60.0)


def _mend(stage: Stage) -> None:
    stage.scene.mend()


def _cut(stage: Stage) -> None:
    stage.scene.proxy.refuse()


def _cut_briefly(stage: Stage) -> None:
    stage.scene.proxy.refuse()
    time.sleep(CUT_S)
    stage.scene.proxy.accept()


def _silence(stage: Stage) -> None:
    """Nothing gets through; what was sent meanwhile arrives when it is over, so writes land late."""
    stage.scene.proxy.hold()


def _connect(stage: Stage) -> None:
    stage.scene.proxy.accept()


def _deliver(stage: Stage) -> None:
    stage.scene.proxy.release()


FAULTS = (
    Fault("holder killed", _kill, "dead", backends=BACKENDS),
    Fault("holder frozen past its TTL", _freeze, "lost", _wake, backends=BACKENDS),
    Fault("server restarted", _restart, "either"),
    Fault("leader of three killed", _kill_leader, "either", _mend, members=3),
    Fault("leader of three frozen, then woken", _freeze_leader, "either", _mend, members=3),
    Fault("session expired from outside", steal_session, "lost", tells=False),
    Fault("connection cut for less than the TTL", _cut_briefly, "kept"),
    Fault("connection cut for more than the TTL", _cut, "lost", _connect),
    Fault("network silent for more than the TTL", _silence, "lost", _deliver),
    Fault("waiter killed", _kill, "dead", backends=BACKENDS, waits=True),
    Fault("waiter frozen past its TTL", _freeze, "lost", _wake, backends=BACKENDS, waits=True),
    Fault("connection of a waiter cut for more than the TTL", _cut, "lost", _connect, waits=True),
)
BY_NAME = {fault.name: fault for fault in FAULTS}
