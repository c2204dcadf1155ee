"""How histories of each backend are recorded: which clients there are, and the faults that can befall them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager as Context
from dataclasses import dataclass, field, replace
from typing import Any

from backends_table import CLUSTERED, SERVERS, SHARED
from trials import fault
from trials.fault import dropped, frozen, held, isolated, killed, locked

CLIENTS = 8
_ELECTION_S = 30.0


@dataclass(frozen=True)
class Fault(fault.Fault):
    """One fault of these runs; ``inflict`` says whether there was anything to hurt.

    Attributes:
        weight: how often.
    """

    weight: int = 1


@dataclass(frozen=True)
class Setup:
    """The eight clients of a backend, and what happens to them.

    Attributes:
        local: how many clients run in this process.
        in_each: how many in each of the others.
        faults: that befall them.
        pause_s: between two faults, at least and at most.
        outage_s: how long a fault lasts, at least and at most.
        options: of the stores.
        give_up_after_s, mean_pause_s: of the clients; see ``Recorder`` and ``Workload``.
    """

    local: int
    in_each: int
    faults: tuple[Fault, ...]
    pause_s: tuple[float, float]
    outage_s: tuple[float, float]
    options: dict[str, float] = field(hash=False)
    give_up_after_s: float | None = None
    mean_pause_s: float = 0.0


def lasting(blow: Callable[..., Context[Any]]) -> Callable[..., bool]:
    """For a while; a blow that gives how many connections it met may have met none."""

    def inflict(run, rng) -> bool:
        with blow(run, rng) as met:
            run.wait(rng)
        return met != 0

    return inflict


@contextlib.contextmanager
def _writer_taken(run, _rng) -> Iterator[None]:
    """A transaction that takes its time holds everybody up, and callers give up."""
    writer = run.local.stores[0]._core.backend._db._writer
    taken, ended = threading.Event(), threading.Event()
    holding = threading.Thread(
        target=writer.use, args=(lambda _: (taken.set(), ended.wait()), time.monotonic() + 5), daemon=True
    )
    holding.start()
    assert taken.wait(10)
    yield
    ended.set()
    holding.join()


def _process_killed(run, rng) -> bool:
    run.kill_a_process(rng)
    return True


def _a_process_frozen(run, rng) -> Context[None]:
    return frozen(rng.choice(list(run.processes)))


def _links(run, rng) -> list[int]:
    """Everybody's, or some."""
    links = run.stage.ways.all()
    return links if rng.random() < 0.6 else rng.sample(links, rng.randint(1, len(links)))


def _connections_cut(run, rng) -> bool:
    return run.stage.ways.cut(_links(run, rng)) > 0


def _packets_dropped(run, rng) -> Context[int]:
    return dropped(run.stage.ways, _links(run, rng))


def _answers_dropped(run, rng) -> Context[int]:
    return dropped(run.stage.ways, _links(run, rng), direction="answers")


def _requests_delayed(run, rng) -> Context[int]:
    """They arrive late: by then their senders may be connected anew."""
    return held(run.stage.ways, _links(run, rng), direction="requests", open_only=True)


def _server_killed(run, rng) -> bool:
    run.witness.before_a_kill()
    with killed(run.stage.server):
        time.sleep(rng.uniform(0.0, 0.3))
    run.witness.after_the_restart()
    return True


def _leader(run) -> Any:
    return run.stage.server.leader(timeout_s=_ELECTION_S)


def _follower_cut_off(run, rng) -> Context[None]:
    return isolated(run.stage, rng.choice(run.stage.server.followers(timeout_s=_ELECTION_S)))


#: One process; callers give up.
MEMORY = Setup(
    local=CLIENTS,
    in_each=1,
    faults=(Fault("writer held up", lasting(_writer_taken)),),
    pause_s=(0.02, 0.2),
    outage_s=(0.03, 0.2),
    options={"call_timeout_s": 0.25},
    give_up_after_s=0.02,
    mean_pause_s=0.001,
)
#: A file, two clients in this process and six in three others, which are killed and frozen at any moment.
SQLITE = Setup(
    local=2,
    in_each=2,
    faults=(
        Fault("process killed", _process_killed, weight=6),
        Fault("process frozen", lasting(_a_process_frozen), weight=1),
        Fault("file locked", lasting(lambda run, _: locked(run.stage.path(run.ROOT))), weight=4),
    ),
    pause_s=(0.02, 0.15),
    outage_s=(0.1, 0.6),
    options={"call_timeout_s": 0.4},
    give_up_after_s=0.05,
    mean_pause_s=0.002,
)
#: A server, five clients in this process and three in others, each with a way of its own to the server.
SERVER = Setup(
    local=5,
    in_each=1,
    faults=(
        Fault("connections cut", _connections_cut, weight=4),
        Fault("packets dropped", lasting(_packets_dropped), weight=4),
        Fault("answers dropped", lasting(_answers_dropped), weight=4),
        Fault("requests delayed", lasting(_requests_delayed), weight=4),
        Fault("server frozen", lasting(lambda run, _: frozen(run.stage.server)), weight=4),
        Fault("server killed", _server_killed, weight=1),
        Fault("process frozen", lasting(_a_process_frozen), weight=2),
    ),
    pause_s=(0.05, 0.25),
    outage_s=(0.3, 0.7),
    options={"call_timeout_s": 0.25, "session_ttl_s": 1.5, "connect_timeout_s": 20},
    mean_pause_s=0.002,
)
#: Three servers whose links can be cut; every client has a way of its own to each of them.
CLUSTER = replace(
    SERVER,
    faults=(
        Fault("connections cut", _connections_cut, weight=2),
        Fault("answers dropped", lasting(_answers_dropped), weight=2),
        Fault("requests delayed", lasting(_requests_delayed), weight=4),
        Fault("leader frozen", lasting(lambda run, _: frozen(_leader(run))), weight=3),
        Fault("leader killed", lasting(lambda run, _: killed(_leader(run))), weight=2),
        Fault("leader cut off", lasting(lambda run, _: isolated(run.stage, _leader(run))), weight=4),
        Fault("follower cut off", lasting(_follower_cut_off), weight=3),
        Fault("process frozen", lasting(_a_process_frozen), weight=1),
    ),
    outage_s=(0.5, 2.5),  # an election takes its time
)
#: Three servers of each: for the long form, on request.
ON_REQUEST = tuple(f"{name}-x3" for name in CLUSTERED)


def setup_of(name: str) -> Setup:
    """That of a backend, or of three servers of it."""
    if name in ON_REQUEST:
        return CLUSTER
    if name in SERVERS:
        return SERVER
    return SQLITE if name in SHARED else MEMORY
