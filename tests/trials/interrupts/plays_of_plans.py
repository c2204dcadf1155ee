"""Plays of plans and their workers: no thread, no draft and no half of a plan is left behind."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

from latchwork.plans import NoSuchPlan, Plans, PlanState, PlanWorker
from latchwork.plans.keys import LANE
from latchwork.plans.place import Place
from latchwork.plans.progress import Progress
from latchwork.plans.records import result_value
from latchwork.plans.running.ends import End, Ends
from latchwork.store.steps import Signal, run
from latchwork.tasks import Done, Functions, Outcome, Payloads
from trials.interrupts.play import Play
from trials.interrupts.plays_of_many import _until

if TYPE_CHECKING:
    from latchwork import Store

FUNCTIONS = Functions()


@FUNCTIONS.task(name="same")
def same(value: int) -> int:
    return value


class _Worker:
    def __init__(self, store: Store, name: str) -> None:
        self.label = f"play-{uuid.uuid4().hex}"
        self.worker = PlanWorker(store, name, functions=FUNCTIONS, label=self.label)


def _threads(label: str) -> list[str]:
    return [each.name for each in threading.enumerate() if label in each.name]


def _workers() -> list[Play]:
    def use(made: _Worker, *_: object) -> None:
        with made.worker:
            pass

    def start(made: _Worker, *_: object) -> None:
        made.worker.start()

    def after(made: _Worker, *_: object) -> None:
        _until(lambda: not _threads(made.label), f"threads are left: {_threads(made.label)}")

    def closed(made: _Worker, *_: object) -> None:
        made.worker.close()
        after(made)

    return [Play("PlanWorker.with", _Worker, use, after), Play("PlanWorker.start", _Worker, start, closed)]


def _builder(mine: Store, name: str) -> Any:
    builder = Plans(mine, name, functions=FUNCTIONS).new(id="p")
    builder.add("same", builder.add("same", 1), name="last")
    return builder


def _state(store: Store, name: str) -> PlanState | None:
    try:
        return Plans(store, name, functions=FUNCTIONS).get("p").state()
    except NoSuchPlan:
        return None


def _builders() -> list[Play]:
    def start(builder: Any, *_: object) -> None:
        builder.start()

    def after(builder: Any, _mine: Store, other: Store, name: str) -> None:
        _until(lambda: _state(other, name) in (PlanState.READY, None), "a draft is left")
        builder.start()
        assert _state(other, name) is PlanState.READY
        with PlanWorker(other, name, functions=FUNCTIONS):
            assert builder.handle.result("last", 10.0) == 1

    return [Play("PlanBuilder.start", _builder, start, after)]


def _handles() -> list[Play]:
    def started(mine: Store, name: str) -> Any:
        return _builder(mine, name).start()

    def add(handle: Any, *_: object) -> None:
        handle.add("same", 7, name="more")

    def added(handle: Any, _mine: Store, other: Store, name: str) -> None:
        names = [node.id for node in Plans(other, name, functions=FUNCTIONS).get("p").graph().nodes]
        if "more" not in names:
            handle.add("same", 7, name="more")
        with PlanWorker(other, name, functions=FUNCTIONS):
            assert handle.wait(10.0).state is PlanState.COMPLETED
            assert handle.result("more", 0) == 7

    def cancel(handle: Any, *_: object) -> None:
        handle.cancel()

    def cancelled(handle: Any, _mine: Store, other: Store, name: str) -> None:
        if _state(other, name) is PlanState.READY:
            handle.cancel()
        with PlanWorker(other, name, functions=FUNCTIONS):
            assert handle.wait(10.0).state is PlanState.CANCELLED

    return [Play("PlanHandle.add", started, add, added), Play("PlanHandle.cancel", started, cancel, cancelled)]


class _Ended:
    """A task that has run, and what decides on its end."""

    def __init__(self, store: Store, name: str) -> None:
        place = Place(store, name)
        _builder(store, name).start()
        entry, plan = seen = run(place.plan("p"))
        progress = Progress(place)
        run(progress.look("p", seen, ["t00000"]))
        claim = next(each for each in place.backlog.try_take([LANE], limit=2) if each.item.id == "p~t00000")
        (task,) = run(place.tasks("p", ["t00000"]))
        outcome = Outcome(Payloads().encode(1, "one"))
        self.end = End(claim, "p", "t00000", outcome, result_value(outcome.to_bytes()), plan, task, entry)
        self.ends = Ends(place, progress, None, Signal())  # type: ignore[arg-type]
        self.label = f"latchwork-plans-ends-{name}"


def _ends() -> list[Play]:
    def use(made: _Ended, *_: object) -> None:
        made.ends.add(made.end)
        made.ends.close()

    def after(made: _Ended, *_: object) -> None:
        made.ends.close()
        _until(lambda: not _threads(made.label), "a thread that decides on ends is left")
        assert not made.ends._waiting, "an end is left that nobody decides on"
        if made.end.ending.done():
            assert isinstance(made.end.ending.result(), Done)

    return [Play("Ends.add", _Ended, use, after)]


def plans() -> list[Play]:
    return [*_workers(), *_builders(), *_handles(), *_ends()]
