"""One play: a backend, a fault, clients that write or rest meanwhile; and the judge's verdict."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trials.contract.faults import Fault
from trials.contract.stage import LINKS, Stage
from trials.judges.contract import figures, judge, reconnected, watched
from trials.raw import wait_until
from trials.record import STRICT, Patience, Record

LOADS = ("idle", "busy")
_BACK_S = 15.0
_TRIES = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """Of one play; ``violations`` are sentences."""

    backend: str
    fault: str
    load: str
    took_s: float
    violations: list[str]
    figures: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def play(backend: str, fault: Fault, load: str, *, links: str = "", patience: Patience = STRICT) -> Verdict:
    """Give it once: ``load`` is what the clients do meanwhile, ``links`` how those are cut; then all of them write.

    Once more, with other servers, when the servers have come to disagree among themselves by a known defect, and when
    nothing was found, but the fault did not land: a fault that never lands is a violation of its own.
    """
    for _ in range(_TRIES):
        verdict, record = _play(backend, fault, load, links, patience)
        again = record.spoilt if verdict.violations else record.missed
        if not again:
            return verdict
        _log.warning("%s, %s, %s is given again: %s", backend, fault.name, load, again)
    if not verdict.violations:
        verdict.violations.append(f"the fault did not land in {_TRIES} plays: {record.missed}")
    return verdict


def _play(backend: str, fault: Fault, load: str, links: str, patience: Patience) -> tuple[Verdict, Record]:
    """The verdict, and what it was found in."""
    began = time.monotonic()
    with _directory(fault) as directory:
        stage = Stage(
            backend,
            directory,
            members=fault.members,
            attach=fault.attach,
            victim=fault.victim,
            links=(links or LINKS[0]) if fault.cuts else "",
            patience=patience,
        )
        with stage:
            _perform(stage, fault, load)
        violations = judge(stage.record)
    took_s = round(time.monotonic() - began, 1)
    return Verdict(backend, fault.name, load, took_s, violations, figures(stage.record)), stage.record


def _perform(stage: Stage, fault: Fault, load: str) -> None:
    record = stage.record
    record.began = time.monotonic()
    if load == "busy":
        _write(stage)
        stage.rest(0.4)
    fault.inflict(stage)
    stage.await_reachable()
    if load == "idle":
        _write(stage)
    wait_until(lambda: None not in {*reconnected(record).values(), *watched(record).values()}, _BACK_S)
    stage.rest(0.3)
    stage.settle()


def _write(stage: Stage) -> None:
    for client in stage.living():
        client.write_on()


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
