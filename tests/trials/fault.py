"""What is done to a stage: one vocabulary of faults for all trials.

Each verb is a context: the trouble begins with it and is over at its end; how long it lasts is up to the trial.

    with frozen(stage.server):          # a server, a group of them, or a process of ours
        time.sleep(1.0)
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager as Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends_table import CLUSTERED, SERVERS
from trials.stage import Stage
from trials.ways import Ways


@dataclass(frozen=True)
class Fault:
    """One fault of a list, and what a stage has to have for it. Trials add what else they have to know of it.

    Attributes:
        name: as a phrase.
        inflict: does it to a trial.
        backends: where it applies; None for all servers, or all that form clusters if it takes several.
        members: how many servers it takes.
        cuts: links between servers are cut.
        disk: sqlite's file has to be on a small file system of its own, which takes root.
    """

    name: str
    inflict: Callable[..., Any]
    backends: tuple[str, ...] | None = None
    members: int = 1
    cuts: bool = False
    disk: bool = False

    def __post_init__(self) -> None:
        if self.backends is None:
            object.__setattr__(self, "backends", SERVERS if self.members == 1 else CLUSTERED)


@contextlib.contextmanager
def _between(begin: Callable[[], Any], end: Callable[[], Any]) -> Iterator[Any]:
    told = begin()
    try:
        yield told
    finally:
        end()


def frozen(one: Any) -> Context[None]:
    """A server, a group or a process of ours stands still."""
    return _between(one.pause, one.resume)


def killed(server: Any) -> Context[None]:
    """A server or a group is gone, by kill -9; it comes back with its data."""
    return _between(server.kill, server.start)


def refused(ways: Ways, links: list[int] | None = None) -> Context[int]:
    """Connections end, and there are no new ones."""
    return _between(lambda: ways.refuse(links), lambda: ways.accept(links))


def held(ways: Ways, links: list[int] | None = None, **how: Any) -> Context[int]:
    """Nothing passes, or nothing one way; it arrives afterwards. Gives how many connections there were."""
    return _between(lambda: ways.hold(links, **how), lambda: ways.release(links))


def dropped(ways: Ways, links: list[int] | None = None, **how: Any) -> Context[int]:
    """Nothing passes, or nothing one way, and it is lost. Gives how many connections there were."""
    return _between(lambda: ways.drop(links, **how), lambda: ways.release(links))


def isolated(stage: Stage, member: Any) -> Context[None]:
    """A member is cut off from the others; its clients stay connected."""
    network = stage.server.network
    return _between(lambda: network.isolate(stage.members.index(member)), network.heal)


def unlinked(stage: Stage, one: Any, other: Any) -> Context[None]:
    """Two members are cut off from each other."""
    network = stage.server.network
    return _between(lambda: network.cut(stage.members.index(one), stage.members.index(other)), network.heal)


@contextlib.contextmanager
def locked(path: Path | str) -> Iterator[None]:
    """Another program is inside a transaction on the file of sqlite."""
    with contextlib.closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextlib.contextmanager
def full(directory: Path) -> Iterator[None]:
    """The file system of the directory has no room left."""
    ballast = directory / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    yield
    ballast.unlink()


@contextlib.contextmanager
def moved_away(path: Path) -> Iterator[None]:
    """The file of sqlite is somewhere else, with what belongs to it."""
    names = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    moved = [(name, name.with_name("moved-" + name.name)) for name in names if name.exists()]
    for name, away in moved:
        name.rename(away)
    yield
    for name, away in moved:
        if away.exists():
            away.rename(name)
