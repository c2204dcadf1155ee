"""One play of the contract: a backend, a fault, clients that write or rest meanwhile; and the judge's verdict.

a   through ways to some servers, which can be hurt
b   straight to all of them
v   where a fault needs one: in a process of its own
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from patience import came_true
from trials import fault as any_fault
from trials.contract.client import Client
from trials.judges.contract.facts import STRICT, Patience, record_of
from trials.judges.contract.rules import (
    figures,
    judge,
    mirrors_differ,
    orphans,
    reconnected,
    watched,
    watches_missed,
)
from trials.raw import etcd_members_differ
from trials.record import Facts
from trials.remote import Remote
from trials.runner import Verdict
from trials.stage import ETCD, LINKS, Stage
from trials.witness import may_differ, version_of

ROOT = "play"
TTL_S = 2.0
CALL_TIMEOUT_S = 2.0
LOADS = ("idle", "busy")
_BACK_S = 15.0
_TRIES = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fault(any_fault.Fault):
    """One fault of these plays.

    Attributes:
        attach: to which members client a connects: all, or only the leader or a follower of before.
        victim: there is a client v.
    """

    attach: str = "all"
    victim: bool = False

    def attached(self, server: Any) -> list[Any]:
        """The members that client a connects to."""
        if self.attach == "all":
            return getattr(server, "members", [server])
        return [server.leader()] if self.attach == "leader" else server.followers()[:1]

    @property
    def is_possible(self) -> bool:
        """It does not take root, or we are root."""
        return not self.disk or os.geteuid() == 0


def play(backend: str, fault: Fault, load: str, *, links: str = "", patience: Patience = STRICT) -> Verdict:
    """Give it once: ``load`` is what the clients do meanwhile, ``links`` how those are cut; then all of them write.

    Once more, with other servers, when the servers have come to disagree among themselves by a known defect, and when
    nothing was found, but the fault did not land: a fault that never lands is a violation of its own.
    """
    for _ in range(_TRIES):
        began = time.monotonic()
        with _directory(fault) as directory, Play(backend, fault, directory, links, patience) as given:
            given.perform(load)
        record = given.record
        took_s = round(time.monotonic() - began, 1)
        verdict = Verdict(backend, fault.name, load, took_s, judge(record), figures(record))
        again = record.spoilt if verdict.violations else record.missed
        if not again:
            return verdict
        _log.warning("%s, %s, %s is given again: %s", backend, fault.name, load, again)
    if not verdict.violations:
        verdict.violations.append(f"the fault did not land in {_TRIES} plays: {record.missed}")
    return verdict


class Play:
    """A stage with its clients, and the record of what they saw. One thread at a time.

    Attributes:
        attached: the members that client a connects to.
        clients: by name.
        raw: reads and does what no store can.
    """

    def __init__(self, backend: str, fault: Fault, directory: Path, links: str, patience: Patience) -> None:
        self.stage = Stage(backend, directory, members=fault.members, links=(links or LINKS[0]) if fault.cuts else "")
        self.fault = fault
        self.ttl_s = TTL_S
        self.attached: list[Any] = []
        self.clients: dict[str, Any] = {}
        self._facts = Facts()
        self.record = record_of(self._facts, CALL_TIMEOUT_S, TTL_S, patience)
        self._open = contextlib.ExitStack()
        self._curtain = False

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            opened.enter_context(self.stage)
            if self.stage.server is not None:
                self.attached = self.fault.attached(self.stage.server)
                self.stage.lay_ways(1, self.attached)
            for name, way in (("a", 0), ("b", None)):
                self.clients[name] = Client(name, self.url(way), self.ttl_s, self._sink)
                opened.callback(self.clients[name].close)
            self.raw = opened.enter_context(contextlib.closing(self.stage.raw(ROOT)))
            if self.fault.victim:
                self.clients["v"] = Remote(
                    "trials.contract.client:serve", "v", self.url(), self.ttl_s, report=self._sink
                )
                opened.callback(self.clients["v"].close)
            for client in self.clients.values():
                client.ready()
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._curtain = True
        self._open.close()

    @property
    def a(self) -> Client:
        return self.clients["a"]

    @property
    def victim(self) -> Remote:
        return self.clients["v"]

    def url(self, way: int | None = None) -> str:
        return self.stage.url(ROOT, way, call_timeout_s=CALL_TIMEOUT_S, connect_timeout_s=20)

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def missed(self, unless: object, why: str) -> None:
        """Note that the fault did not land, unless it is true."""
        if not unless and not self.record.missed:
            self.record.missed = why

    def perform(self, load: str) -> None:
        """Have the clients live through the fault, and come to rest."""
        record = self.record
        record.began = time.monotonic()
        if load == "busy":
            self._write()
            self.rest(0.4)
        self.fault.inflict(self)
        self._await_reachable()
        if load == "idle":
            self._write()
        came_true(lambda: None not in {*reconnected(record).values(), *watched(record).values()}, _BACK_S)
        self.rest(0.3)
        for client in self._living().values():  # whatever was unknown gets known
            record.problems += client.settle()
        came_true(self._is_quiet, 4 * self.ttl_s, every_s=0.1)
        self._curtain = True
        self._compare_members()

    def _write(self) -> None:
        for client in self._living().values():
            client.write_on()

    def _living(self) -> dict[str, Any]:
        return {name: client for name, client in self.clients.items() if name not in self.record.gone}

    def _await_reachable(self, timeout_s: float = 30.0) -> None:
        """Note from when each client's servers can be reached."""
        reachable = self.record.reachable
        ways = {name: self.attached if name == "a" else self.stage.members for name in self._living()}

        def look() -> bool:
            for name in [name for name in ways if name not in reachable]:
                if not ways[name] or any(self.stage.serves(member) for member in ways[name]):
                    reachable[name] = time.monotonic()
            return len(reachable) == len(ways)

        if not came_true(look, timeout_s, every_s=0.01):
            self.record.problems.append(f"the servers were not back {timeout_s} s after the trouble")

    def _is_quiet(self) -> bool:
        """Note the server's state and the mirrors; whether they agree, as far as the watches have told by now.

        A session may be lost in between on a busy machine: what differs for a moment is read again.
        """
        record = self.record
        record.read_at = time.monotonic()
        record.state = self.raw.state()
        record.mirrors = {name: client.mirrored() for name, client in self._living().items()}
        return not any(any(rule(record)) for rule in (mirrors_differ, watches_missed, orphans))

    def _compare_members(self) -> None:
        """Members that differ are what no client can make up for; of a version known for it they spoil the play."""
        if self.stage.backend in ETCD and len(self.stage.members) > 1:
            difference = etcd_members_differ([member.endpoint for member in self.stage.members])
            if difference and may_differ(version_of(ETCD[self.stage.backend])):
                self.record.spoilt = difference
            elif difference:
                self.record.problems.append(difference)

    def _sink(self, fact: Any) -> None:
        if not self._curtain:
            self._facts.add(fact)


@contextlib.contextmanager
def _directory(fault: Fault) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="latchwork-play-") as name:
        if not fault.disk:
            yield Path(name)
            return
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", name], check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)
