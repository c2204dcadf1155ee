"""Who has joined as what, and the epoch it stands in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from latchwork.primitives import Barrier
from latchwork.primitives.waiting import check_member
from latchwork.store.session import Session
from latchwork.store.steps import ask, steps_of
from latchwork.store.store import Store
from latchwork.types import At, Entry, Fence
from latchwork.workers.keys import FINAL, INIT, RunKeys
from latchwork.workers.plans import Standing
from latchwork.workers.records import WorkerInfo, read_epoch


@dataclass(frozen=True, slots=True)
class Seat:
    """One incarnation of a worker that has joined.

    Attributes:
        keys: of the run.
        info: as it joined.
        session: the session it lives by.
        live: its lease.
        events: how many things had happened before it joined.
        is_new: whether it has joined for the first time.
    """

    keys: RunKeys
    info: WorkerInfo
    session: Session
    live: Entry
    events: int
    is_new: bool

    def fence(self, store: Store, epoch: Entry | None = None) -> Fence:
        """That we still are this worker; with an epoch, that it goes on."""
        more = () if epoch is None else (At(epoch),)
        token = max(self.live.token, epoch.token if epoch is not None else 0)
        return store.fence(token, At(self.live), self.session.fence, *more)


async def standing_of(store: Store, keys: RunKeys) -> Standing | None:
    """The epoch, and whether its first and last barriers have passed; None when the run is gone."""
    entry = await ask(store.get, keys.epoch)
    if entry is None:
        return None
    passed: list[bool] = []
    checks = []
    for name in (INIT, FINAL):
        barrier = Barrier(
            store, keys.barrier(read_epoch(entry), name), parties=1, member_id="look", per_generation=True
        )
        has_passed, check = await steps_of(barrier.check)()
        passed.append(has_passed)
        checks.append(check)
    is_told = not passed[0] or await ask(store.get, keys.healthy(read_epoch(entry))) is not None
    is_initialised, is_over = passed
    return Standing(entry, tuple(checks), is_initialised, is_over, is_told)


def check_key(key: str | None, info: WorkerInfo, what: str) -> WorkerInfo:
    """What a worker says of itself, with its key."""
    if key is None:
        port = next((info.ports[name] for name in sorted(info.ports)), None)
        if not info.ip or port is None:
            raise ValueError(
                f"{what}: give a key, or an info with an ip and a port: it is known by that after a restart"
            )
        key = f"{info.ip}:{port}"
    return replace(info, key=check_member(key, "worker key"))
