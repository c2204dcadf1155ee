"""Plays of children, slots and feeders: no process, no thread and no slot is left behind."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from latchwork import primitives as p
from latchwork.tasks import DEFAULT, Call, Feeder, FeederHooks, GroupCommit, Payloads, Run, Slots, TaskContext
from latchwork.tasks.children import Child
from trials.interrupts.play import Play
from trials.interrupts.plays_of_many import _until

if TYPE_CHECKING:
    from latchwork import Store


class _Nothing(FeederHooks):
    def lanes(self) -> list[str]:
        return ["any"]

    def begin(self, claim: p.BacklogClaim) -> Run:
        raise AssertionError(claim)

    def finish(self, claim: p.BacklogClaim, outcome: object) -> None:
        raise AssertionError(claim, outcome)


def _label(*_: object) -> str:
    return f"play-{uuid.uuid4().hex}"


def _processes(label: str) -> list[str]:
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if label.encode() in each.read_bytes():
                found.append(each.parent.name)
        except OSError:  # it has ended meanwhile
            continue
    return found


def _threads(label: str) -> list[str]:
    return [each.name for each in threading.enumerate() if label in each.name]


def _child() -> list[Play]:
    def use(label: str, *_: object) -> None:
        with Child(["sleep", "60"], label=label):
            pass

    def after(label: str, *_: object) -> None:
        _until(lambda: not _processes(label), f"the supervisor {label} is left")

    return [Play("Child.with", _label, use, after)]


def _slots() -> list[Play]:
    def made(_mine: Store, name: str) -> Slots:
        return Slots(1, DEFAULT, Payloads(), label=_label(name))

    def start(slots: Slots, *_: object) -> None:
        slots.start(Call("nothing", b""), TaskContext("one"))

    def start_with(slots: Slots, *_: object) -> None:
        with slots:
            start(slots)

    def free(slots: Slots, *_: object) -> None:
        _until(lambda: slots.free == 1, "a slot is taken for ever")
        slots.start(Call("nothing", b""), TaskContext("two")).result(5.0)
        assert slots.close() == []
        assert _threads(slots._label) == []

    def closed(slots: Slots, *_: object) -> None:
        _until(lambda: not _threads(slots._label), "a thread is left")

    return [Play("Slots.start", made, start, free), Play("Slots.with", made, start_with, closed)]


def _feeder() -> list[Play]:
    class Made:
        def __init__(self, store: Store, name: str) -> None:
            self.label = _label(name)
            self.slots = Slots(1, DEFAULT, Payloads(), label=self.label)
            self.commits = GroupCommit(store, label=self.label)
            backlog = p.Backlog(store, name)
            self.feeder = Feeder(backlog, self.slots, self.commits, _Nothing(), store=store, node_id=self.label)

    def used(made: Made, *_: object) -> None:
        with made.feeder:
            pass

    def started(made: Made, *_: object) -> None:
        made.feeder.start()

    def after(made: Made, *_: object) -> None:
        made.slots.close()
        made.commits.close()
        _until(lambda: not _threads(made.label), f"threads are left: {_threads(made.label)}")

    def closed(made: Made, *_: object) -> None:
        made.feeder.close()
        after(made)

    return [Play("Feeder.with", Made, used, after), Play("Feeder.start", Made, started, closed)]


def tasks() -> list[Play]:
    return [*_child(), *_slots(), *_feeder()]
