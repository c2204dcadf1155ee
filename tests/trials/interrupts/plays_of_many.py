"""Plays of what several meet at or share: runs that happen once, barriers, groups, numbers, rate limiters."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from latchwork import Put
from latchwork import primitives as p
from latchwork.errors import BarrierBroken, LatchworkError
from patience import came_true
from trials.interrupts.play import WAIT_S, Play

if TYPE_CHECKING:
    from collections.abc import Callable

    from latchwork import Store


def _until(true: Callable[[], object], else_: str) -> None:
    """Wait for what goes on in the background."""
    assert came_true(true, WAIT_S, every_s=0.002), else_


def onces() -> list[Play]:
    def made(store: Store, name: str) -> p.Once:
        return p.Once(store, name, max_starts=2)

    def had(store: Store, name: str) -> p.Once:
        once = made(store, name)
        once.run(lambda _work: b"x")
        return once

    def run(once: p.Once, *_: object) -> None:
        once.run(lambda _work: b"x", timeout_s=WAIT_S)

    def after(ours: p.Once, _mine: Store, other: Store, name: str) -> None:
        theirs = made(other, name)
        assert theirs.run(lambda _work: b"x", timeout_s=WAIT_S) == b"x"
        assert ours.run(lambda _work: b"y", timeout_s=WAIT_S) == b"x"
        _until(lambda: theirs.runner() is None, "a ticket of nobody's")

    def again(ours: p.Once, mine: Store, other: Store, name: str) -> None:
        ours.close()
        after(made(mine, name), mine, other, name)

    return [
        Play("Once.run", made, run, after),
        Play("Once.run of another's outcome", had, run, after),
        Play("Once.reset", had, lambda once, *_: once.reset(), after),
        Play("Once.close", had, lambda once, *_: once.close(), again),
    ]


def barriers() -> list[Play]:
    def barrier(store: Store, name: str, member: str = "m", parties: int = 1) -> p.Barrier:
        return p.Barrier(store, name, parties=parties, member_id=member)

    def pair(store: Store, name: str) -> p.Barrier:
        return barrier(store, name, parties=2)

    def lose_patience(ours: p.Barrier, *_: object) -> None:
        with suppress(BarrierBroken):
            ours.wait(0.01)

    def passed(ours: p.Barrier, _mine: Store, other: Store, name: str) -> None:
        ours.wait(WAIT_S)
        barrier(other, name, "b").wait(WAIT_S)
        ours.close()

    def broken(ours: p.Barrier, _mine: Store, other: Store, name: str) -> None:
        """Whoever counts still is forgotten with the generation."""
        theirs = barrier(other, name, "b", 2)
        theirs.abort()
        assert theirs.arrived() == [], "an arrival at a generation that nobody has begun"
        lose_patience(ours)
        ours.close()

    return [
        Play("Barrier.wait", barrier, lambda ours, *_: ours.wait(WAIT_S), passed),
        Play("Barrier.wait in vain", pair, lose_patience, broken),
        Play("Barrier.abort", pair, lambda ours, *_: ours.abort(), broken),
    ]


def double_barriers() -> list[Play]:
    def made(store: Store, name: str, member: str = "m") -> p.DoubleBarrier:
        return p.DoubleBarrier(store, name, parties=1, member_id=member, timeout_s=WAIT_S)

    def entered(store: Store, name: str) -> p.DoubleBarrier:
        ours = made(store, name)
        ours.enter(WAIT_S)
        return ours

    def use(ours: p.DoubleBarrier, *_: object) -> None:
        with ours:
            pass

    def inside(ours: p.DoubleBarrier, mine: Store, other: Store, name: str) -> None:
        ours.enter(WAIT_S)
        left(ours, mine, other, name)

    def left(ours: p.DoubleBarrier, _mine: Store, other: Store, name: str) -> None:
        with suppress(LatchworkError):  # it has left
            ours.leave(WAIT_S)
        use(made(other, name, "b"))

    def ended(ours: p.DoubleBarrier, _mine: Store, other: Store, name: str) -> None:
        if ours.members():
            ours.abort()
        use(made(other, name, "b"))

    return [
        Play("DoubleBarrier.with", made, use, ended),
        Play("DoubleBarrier.enter", made, lambda ours, *_: ours.enter(WAIT_S), inside),
        Play("DoubleBarrier.leave", entered, lambda ours, *_: ours.leave(WAIT_S), left),
    ]


def groups() -> list[Play]:
    def member(store: Store, name: str) -> p.Group:
        return p.Group(store, name, member_id="m")

    def joined(store: Store, name: str) -> p.Group:
        ours = member(store, name)
        ours.start()
        ours.wait(WAIT_S)
        return ours

    def gone(ours: p.Group, _mine: Store, other: Store, name: str) -> None:
        ours.close()
        onlooker = p.Group(other, name)
        _until(lambda: not onlooker.members(), "a member that has left is still there")
        with p.Group(other, name, member_id="m", id_wait_s=0.0) as theirs:
            assert theirs.wait(WAIT_S).ids == ["m"]

    def use(ours: p.Group, *_: object) -> None:
        with ours:
            ours.wait(WAIT_S)

    def evict(_ours: p.Group, mine: Store, name: str) -> None:
        p.Group(mine, name).evict("m")

    return [
        Play("Group.with", member, use, gone),
        Play("Group.sync", joined, lambda ours, *_: ours.sync(WAIT_S), gone),
        Play("Group.update", joined, lambda ours, *_: ours.update(labels={"a": "b"}), gone),
        Play("Group.close", joined, lambda ours, *_: ours.close(), gone),
        Play("Group.evict", joined, evict, gone),
    ]


def numbers() -> list[Play]:
    def added(_ours: p.Counter, _mine: Store, other: Store, name: str) -> None:
        theirs = p.Counter(other, name)
        before = theirs.value()
        assert before in {0, 1}
        assert theirs.add() == before + 1

    def take(ours: p.Sequence, _mine: Store, name: str) -> None:
        ours.take(lambda n: [Put(f"{name}-records/r{n}", b"")])

    def taken(_ours: p.Sequence, _mine: Store, other: Store, name: str) -> None:
        theirs = p.Sequence(other, name)
        last = theirs.last()
        assert len(other.children(f"{name}-records")) == last <= 1
        take(theirs, other, name)
        assert theirs.last() == last + 1

    def limiter(store: Store, name: str) -> p.RateLimiter:
        return p.RateLimiter(store, name, permits=1, interval_s=0.02)

    def spent(store: Store, name: str) -> p.RateLimiter:
        ours = limiter(store, name)
        ours.acquire(timeout_s=WAIT_S)
        return ours

    def acquired(ours: p.RateLimiter, _mine: Store, other: Store, name: str) -> None:
        ours.acquire(timeout_s=WAIT_S)
        closed(ours, _mine, other, name)

    def closed(ours: p.RateLimiter, _mine: Store, other: Store, name: str) -> None:
        ours.close()
        with limiter(other, name) as theirs:
            theirs.acquire(timeout_s=WAIT_S)
            _until(lambda: theirs.waiters() == [], "a ticket of nobody's")

    def acquire(ours: p.RateLimiter, *_: object) -> None:
        ours.acquire(timeout_s=WAIT_S)

    return [
        Play("Counter.add", p.Counter, lambda ours, *_: ours.add(), added),
        Play("Counter.put", p.Counter, lambda ours, *_: ours.put(1), added),
        Play("Sequence.take", p.Sequence, take, taken),
        Play("RateLimiter.acquire", limiter, acquire, acquired),
        Play("RateLimiter.acquire after a wait", spent, acquire, acquired),
        Play("RateLimiter.close", spent, lambda ours, *_: ours.close(), closed),
    ]
