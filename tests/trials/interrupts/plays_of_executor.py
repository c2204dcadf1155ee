"""Plays of executors: no task is half stored, no thread, no session and no member is left behind."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from latchwork.executor import Executor, NoSuchTask, Runner
from latchwork.store import system_namespace
from latchwork.tasks import Functions
from trials.interrupts.play import Play
from trials.interrupts.plays_of_many import _until

if TYPE_CHECKING:
    from latchwork import Store

WORK = Functions()


@WORK.task(name="square")
def square(n: int) -> int:
    return n * n


def _threads(name: str) -> list[str]:
    return [each.name for each in threading.enumerate() if name in each.name]


def _left(store: Store, name: str) -> list[str]:
    """What is there beside the marks of shelves, which the next runner takes out."""
    found = system_namespace(store, "executor").list(name, recursive=True)
    return [entry.key for entry in found if "/shelves/" not in entry.key]


class _Pool:
    def __init__(self, store: Store, name: str) -> None:
        self.name = f"executor-{name}"
        self.pool = Executor(store, self.name, functions=WORK)

    def nothing_left(self, other: Store) -> None:
        self.pool.shutdown(cancel_futures=True)
        _until(lambda: not _left(other, self.name), f"left behind: {_left(other, self.name)}")
        _until(lambda: not _threads(self.name), f"threads are left: {_threads(self.name)}")


class _Stored(_Pool):
    """One task is queued."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(store, name)
        self.future = self.pool.submit(square, 3)
        self.pool.flush(5.0)


class _Detached(_Pool):
    """One detached task is queued."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(store, name)
        self.ref = self.pool.detached(square, 3, id="one")


def _submitting() -> list[Play]:
    def submit(made: _Pool, *_: object) -> None:
        made.pool.submit(square, 3)

    def after(made: _Pool, _mine: Store, other: Store, *_: object) -> None:
        made.nothing_left(other)

    def flush(made: _Pool, *_: object) -> None:
        made.pool.submit(square, 3)
        made.pool.flush(5.0)

    def detach(made: _Pool, *_: object) -> None:
        made.pool.detached(square, 3, id="one")

    def whole_or_not(made: _Pool, _mine: Store, other: Store, *_: object) -> None:
        """Its record and its item are there, or neither is; put again it is there once."""
        ref = made.pool.detached(square, 3, id="one")
        assert ref.state().phase == "queued"
        assert len([key for key in _left(other, made.name) if "/items/" in key]) == 1
        assert ref.cancel()
        assert ref.forget()
        made.nothing_left(other)

    return [
        Play("Executor.submit", _Pool, submit, after),
        Play("Executor.flush", _Pool, flush, after),
        Play("Executor.detached", _Pool, detach, whole_or_not),
    ]


def _ending() -> list[Play]:
    def cancel(made: _Stored, *_: object) -> None:
        made.future.cancel()

    def cancelled(made: _Stored, _mine: Store, other: Store, *_: object) -> None:
        _until(lambda: made.future.cancel() and made.future.cancelled(), "it is not cancelled")
        made.nothing_left(other)

    def shut_down(made: _Stored, *_: object) -> None:
        made.pool.shutdown(cancel_futures=True)

    def gone(made: _Stored, _mine: Store, other: Store, *_: object) -> None:
        made.nothing_left(other)
        assert made.future.cancelled()

    def forget(made: _Detached, *_: object) -> None:
        made.ref.cancel()
        made.ref.forget()

    def forgotten(made: _Detached, _mine: Store, other: Store, *_: object) -> None:
        try:
            made.ref.cancel()
            made.ref.forget()
        except NoSuchTask:
            pass
        made.nothing_left(other)

    return [
        Play("TaskFuture.cancel", _Stored, cancel, cancelled),
        Play("Executor.shutdown", _Stored, shut_down, gone),
        Play("TaskRef.forget", _Detached, forget, forgotten),
    ]


def _runner() -> list[Play]:
    class Made:
        def __init__(self, store: Store, name: str) -> None:
            self.name = f"executor-{name}"
            self.runner = Runner(store, self.name, node_id=f"member-{name}", slots=1, functions=WORK)

        def nothing_left(self, other: Store) -> None:
            self.runner.close(5.0)
            _until(lambda: not _members(other, self.name), f"a member is left: {_members(other, self.name)}")
            _until(lambda: not _threads(self.runner.node_id), f"threads are left: {_threads(self.runner.node_id)}")

    def start(made: Made, *_: object) -> None:
        made.runner.start()
        made.runner.wait_ready(5.0)

    def use(made: Made, *_: object) -> None:
        with made.runner:
            made.runner.wait_ready(5.0)

    def after(made: Made, _mine: Store, other: Store, *_: object) -> None:
        made.nothing_left(other)

    return [Play("Runner.start", Made, start, after), Play("Runner.with", Made, use, after)]


def _members(store: Store, name: str) -> list[str]:
    return store.children(f"{name}/group/members")


def executor() -> list[Play]:
    return [*_submitting(), *_ending(), *_runner()]
