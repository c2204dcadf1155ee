"""Plays of workers: nobody is left in a job whose ``join`` did not return, and its id is had by its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from latchwork.workers import Worker, find, submit
from trials.interrupts.play import WAIT_S, Play
from trials.interrupts.plays_of_many import _until

if TYPE_CHECKING:
    from latchwork import Store


def _made(mine: Store, name: str) -> Worker:
    return Worker(mine, name, workers=2, key="a", replace=False)


def _known(mine: Store, name: str) -> Worker:
    with Worker(mine, name, workers=2, key="a") as one:
        one.leave()
    return _made(mine, name)


def _joined(mine: Store, name: str) -> Worker:
    one = _made(mine, name)
    one.join(WAIT_S)
    return one


def _join(one: Worker, *_: object) -> None:
    one.join(WAIT_S)


def _enter(one: Worker, *_: object) -> None:
    with one:
        pass


def _live(other: Store, name: str) -> list[str]:
    handle = find(other, name)
    return [] if handle is None else other.children(f"@workers/default/jobs/{name}/runs/{handle.run}/live")


def _others_can(one: Worker, _mine: Store, other: Store, name: str) -> None:
    """Whoever was interrupted is in the job and knows it, or will not be soon: its key and its id are free."""
    if one._core.seat is not None:
        assert _live(other, name) == ["000000"]
        one.close()
    _until(lambda: not _live(other, name), "a lease of a worker that did not join")
    again = Worker(other, name, workers=2, key="a", replace=False)
    if find(other, name) is not None or one._core.seat is None:
        assert again.join(WAIT_S).id == 0
        second = Worker(other, name, workers=2, key="b")
        assert second.join(WAIT_S).id == 1
        second.close()
    again.close()
    one.close()


def _left(one: Worker, _mine: Store, other: Store, name: str) -> None:
    _until(lambda: not _live(other, name), "a lease of a worker that was closed")
    one.close()


def _submitted(_none: None, _mine: Store, other: Store, name: str) -> None:
    submit(other, name, 2, replace=True)


def workers() -> list[Play]:
    return [
        Play("Worker.join", _made, _join, _others_can),
        Play("Worker.join again", _known, _join, _others_can),
        Play("Worker.with", _made, _enter, _left),
        Play("Worker.close", _joined, lambda one, *_: one.close(), _left),
        Play("submit", lambda *_: None, lambda _one, mine, name: submit(mine, name, 2), _submitted),
    ]
