"""The kinds of faults of storms: what happens to a process, to its way to the server, or to the server."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager as Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trials.fault import frozen, held, killed, refused

if TYPE_CHECKING:
    from trials.storms.storm import Storm

Lasts = Callable[[random.Random, float], float]


def ttls(*choices: float) -> Lasts:
    """Return what draws a length from these numbers of TTLs."""
    return lambda rng, ttl_s: rng.choice(choices) * ttl_s


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        inflict: begins it for a storm and a node; it is over with the end of its context.
        lasts_s: draws the seconds that it lasts, given the TTL of the load.
        on_node: whether it hurts a process, which the load chooses by the role in the name of the kind.
    """

    inflict: Callable[[Storm, str], Context[Any]]
    lasts_s: Lasts = ttls(0.3, 1.0, 1.5, 2.0)
    on_node: bool = True


def _end(storm: Storm, node: str, *, how: str) -> Context[None]:
    """End a process. It comes back after at most two seconds; meanwhile others take over."""
    storm.restart_at[node] = time.monotonic() + storm.random.uniform(0.0, 2.0)
    getattr(storm.processes[node], how)()
    return contextlib.nullcontext()


def _silence(storm: Storm, node: str) -> Context[int]:
    way = storm.random.choice(["requests", "answers", "both"])
    return held(storm.stage.ways, storm.links(node), direction=way)


def _at_once(_random: random.Random, _ttl_s: float) -> float:
    return 0.0


def _member(storm: Storm) -> Any:
    return storm.random.choice(storm.stage.members)


KILL = Kind(lambda storm, node: _end(storm, node, how="kill"), _at_once)
LEAVE = Kind(lambda storm, node: _end(storm, node, how="terminate"), _at_once)
FREEZE = Kind(lambda storm, node: frozen(storm.processes[node]))
CUT = Kind(lambda storm, node: refused(storm.stage.ways, storm.links(node)))
SILENCE = Kind(_silence)
KILL_SERVER = Kind(lambda storm, _: killed(_member(storm)), lambda rng, _: rng.uniform(0.1, 1.0), on_node=False)
FREEZE_SERVER = Kind(lambda storm, _: frozen(_member(storm)), ttls(0.4, 1.0, 1.5), on_node=False)
CUT_SERVER = Kind(lambda storm, _: refused(storm.stage.ways), on_node=False)


def kinds_of(backend: str, *roles: str, **more: Kind) -> dict[str, Kind]:
    """Return the kinds of faults for processes of these roles and for their server.

    Args:
        backend: SQLite has no server, and no way to it.
        roles: of processes.
        more: further kinds for each of the roles, by their verbs.
    """
    has_server = backend != "sqlite"
    on_nodes = {"kill": KILL, "freeze": FREEZE, **({"cut": CUT, "silence": SILENCE} if has_server else {}), **more}
    found = {f"{verb} {role}": kind for verb, kind in on_nodes.items() for role in roles}
    return found | ({"kill server": KILL_SERVER, "freeze server": FREEZE_SERVER} if has_server else {})
