"""Keepers of many locks, and what follows the store: mirrors and observers of elections."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from latchwork import primitives as p
from latchwork.errors import WaitTimeout
from trials.interrupts.play import WAIT_S, Play

if TYPE_CHECKING:
    from latchwork import Mirror, Store

TTL_S = 30.0
NAMES = ("a", "b", "c")


def _keeper(store: Store, _name: str) -> p.LockKeeper:
    return p.LockKeeper(store, ttl_s=TTL_S)


def _having(store: Store, name: str) -> p.LockKeeper:
    ours = _keeper(store, name)
    assert len(ours.try_acquire_many([f"{name}/{each}" for each in NAMES])) == len(NAMES)
    return ours


def _rivals(store: Store, name: str) -> tuple[p.LockKeeper, p.LockKeeper]:
    return _having(store, name), _keeper(store, name)


def _heirs(store: Store, name: str) -> tuple[str, p.LockKeeper]:
    """An earlier life of the process has left its locks."""
    first = _having(store, name)
    owner_id = first.owner_id
    first.close(release=False)
    return owner_id, _keeper(store, name)


def keepers() -> list[Play]:
    def free(ours: p.LockKeeper, _mine: Store, other: Store, name: str) -> None:
        """What it knows that it has it can give back; then others can have them all, long before they run out."""
        with p.LockKeeper(other, ttl_s=TTL_S) as theirs:
            if ours.held():
                ours.release(list(ours.held()))
            for each in NAMES:
                theirs.acquire(f"{name}/{each}", WAIT_S)
        ours.close()

    def lose_patience(both: tuple[p.LockKeeper, p.LockKeeper], _mine: Store, name: str) -> None:
        with suppress(WaitTimeout):
            both[1].acquire(f"{name}/a", 0.02)

    def free_of_both(both: tuple[p.LockKeeper, p.LockKeeper], mine: Store, other: Store, name: str) -> None:
        assert not both[1].held()
        assert not both[1].awaited_locks()
        both[1].close()
        free(both[0], mine, other, name)

    def adopt(heir: tuple[str, p.LockKeeper], *_: object) -> None:
        heir[1].adopt(heir[0], timeout_s=WAIT_S)

    def adopted(heir: tuple[str, p.LockKeeper], mine: Store, other: Store, name: str) -> None:
        """What it had taken over is given back, or known; the rest can be adopted still."""
        heir[1].adopt(heir[0], timeout_s=WAIT_S)
        free(heir[1], mine, other, name)

    def take_all(ours: p.LockKeeper, _mine: Store, name: str) -> None:
        ours.try_acquire_many([f"{name}/{each}" for each in NAMES])

    def give_back(ours: p.LockKeeper, _mine: Store, name: str) -> None:
        ours.release([f"{name}/{each}" for each in NAMES])

    return [
        Play("LockKeeper.acquire", _keeper, lambda ours, _mine, name: ours.acquire(f"{name}/a", WAIT_S), free),
        Play("LockKeeper.acquire in vain", _rivals, lose_patience, free_of_both),
        Play("LockKeeper.try_acquire_many", _keeper, take_all, free),
        Play("LockKeeper.adopt", _heirs, adopt, adopted),
        Play("LockKeeper.release", _having, give_back, free),
        Play("LockKeeper.close", _having, lambda ours, *_: ours.close(), free),
        Play("LockKeeper.holders", _having, lambda ours, _mine, name: ours.holders(name), free),
    ]


def mirrors() -> list[Play]:
    def written(store: Store, name: str) -> None:
        store.put(f"{name}/a", b"1")

    def mirrored(store: Store, name: str) -> Mirror:
        written(store, name)
        return store.mirror(name)

    def begin(_: None, mine: Store, name: str) -> None:
        with mine.mirror(name) as mirror:
            assert mirror[f"{name}/a"].value == b"1"

    def wait_for(mirror: Mirror, *_: object) -> None:
        with suppress(WaitTimeout):
            mirror.wait_until(lambda now: len(now) > 1, 0.02)

    def current(mirror: Mirror, _mine: Store, other: Store, name: str) -> None:
        """It goes on as if nobody had waited."""
        other.put(f"{name}/b", b"2")
        mirror.wait_until(lambda now: len(now) == 2, WAIT_S)
        mirror.close()

    def closed(mirror: Mirror | None, mine: Store, other: Store, name: str) -> None:
        if mirror is not None:
            mirror.close()
        with mine.mirror(name) as again:
            assert again[f"{name}/a"].value == b"1"
        assert other.get(f"{name}/a").value == b"1"

    return [
        Play("Store.mirror", written, begin, closed),
        Play("Mirror.wait_until", mirrored, wait_for, current),
        Play("Mirror.close", mirrored, lambda mirror, *_: mirror.close(), closed),
    ]


def observers() -> list[Play]:
    def elected(store: Store, name: str) -> tuple[p.Election, p.Observer]:
        election = p.Election(store, name, node_id="first")
        election.campaign(b"first", timeout_s=WAIT_S)
        return election, election.observe()

    def hear(both: tuple[p.Election, p.Observer], *_: object) -> None:
        assert both[1].next(WAIT_S).node_id == "first"
        with suppress(WaitTimeout):
            both[1].next(0.02)

    def told(both: tuple[p.Election, p.Observer], _mine: Store, other: Store, name: str) -> None:
        """It tells the next leader, whether or not the one before was told."""
        election, observer = both
        election.close()
        with p.Election(other, name, node_id="second").campaign(timeout_s=WAIT_S):
            while (leader := observer.next(WAIT_S)) is None or leader.node_id != "second":
                pass
        observer.close()

    def deaf(both: tuple[p.Election, p.Observer], _mine: Store, other: Store, name: str) -> None:
        both[0].close()
        both[1].close()
        p.Election(other, name, node_id="second").campaign(timeout_s=WAIT_S).resign()

    return [
        Play("Observer.next", elected, hear, told),
        Play("Observer.close", elected, lambda both, *_: both[1].close(), deaf),
    ]
