"""The faults of the plays of the contract: what is done to a stage and its clients, and where it applies.

A fault returns when the trouble is over. What only it can find wrong it adds to ``record.problems``; that it did not do
what it was to do, it says in ``record.missed``.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager as Context
from typing import Any

import latchwork
from backends_table import ETCD
from backends_table import SHARED as BACKENDS
from latchwork.errors import ConnectFailed, LatchworkError, QuotaExceeded, Unavailable
from latchwork_testkit.proxy import Direction
from patience import came_true
from trials.contract.play import ROOT, Fault, Play
from trials.fault import frozen, full, held, isolated, killed, moved_away, refused, unlinked
from trials.judges.contract.rules import WRITES
from trials.raw import secret
from trials.remote import Remote

_HALF, _THRICE = 0.5, 3.0
_FROZEN = 1.6
#: In TTL: one, what the server adds, and what a busy machine adds.
_VANISH = 3.0
#: So often requests are held back until one of them is a write.
_HOLDS = 6
_SQLITE = ("sqlite",)


def lasting(blow: Callable[[Play], Context[Any]], ttls: float) -> Callable[[Play], None]:
    """For so many TTL."""

    def inflict(play: Play) -> None:
        with blow(play):
            play.rest(ttls * play.ttl_s)

    return inflict


def server_killed(play: Play) -> None:
    with killed(play.stage.server):
        play.rest(0.5)


def client_frozen(play: Play) -> None:
    """For longer than its TTL: others see its keys vanish before it can know."""
    play.record.exempt.add("v")
    with frozen(play.victim):
        vanished = _vanishes(play)
        play.rest(max(0.0, (_FROZEN - 1) * play.ttl_s))
    if not vanished:
        play.record.problems.append(f"the keys of a frozen client did not vanish within {_VANISH:g} TTL")


def client_killed(play: Play) -> None:
    play.victim.kill()
    play.record.gone.add("v")
    if not _vanishes(play):
        play.record.problems.append(f"the keys of a killed client did not vanish within {_VANISH:g} TTL")


def connection_cut(play: Play) -> None:
    ended = 0
    for _ in range(4):
        ended += play.stage.ways.cut()
        play.rest(0.15)
    play.missed(ended > 0, "there was no connection to cut")


def one_way_cut(way: Direction) -> Callable[[Play], None]:
    """One direction is silent; then the connections break, and what was on its way is lost."""

    def inflict(play: Play) -> None:
        with held(play.stage.ways, direction=way):
            play.rest(_HALF * play.ttl_s)
            play.stage.ways.cut()
        _held(play)

    return inflict


def silence(ttls: float, way: Direction = "both") -> Callable[[Play], None]:
    """Nothing passes, or nothing that way; afterwards all that was sent arrives, on connections that nobody cut."""

    def inflict(play: Play) -> None:
        with held(play.stage.ways, direction=way):
            play.rest(ttls * play.ttl_s)
        _held(play)

    return inflict


def write_delayed(play: Play) -> None:
    """Requests hang in the network while their client has long connected anew; then they arrive.

    What hangs may be a read, which could not land late: then they are held once more.
    """
    ways, hangs = play.stage.ways, False
    play.a.write_on()  # else there is nothing that could arrive late
    for _ in range(_HOLDS):
        play.rest(0.3)
        with held(ways, direction="requests", open_only=True):
            play.rest(0.3)
            writes = [call for call in play.record.calls if call.client == "a" and call.kind in WRITES]
            hangs = any(call.ended is None for call in writes)
            if hangs:
                ways.cut_clients()
                play.rest(1.2)
                break
    late = came_true(ways.late_bytes, 2.0)
    play.missed(late and hangs, f"of the writes, held: {hangs}, arrived late: {late}")


def session_revoked(play: Play) -> None:
    play.record.exempt.add("a")
    for _ in range(2):
        session = play.a.session
        assert session is not None
        play.raw.revoke(secret(session))
        if not session.lost.wait(play.ttl_s + play.record.patience.grace_s):
            play.record.problems.append("a revoked session was not lost within its TTL")
        came_true(lambda session=session: play.a.session is not session, 5.0)


def compacted(play: Play) -> None:
    """Again and again, under watches that follow."""
    for _ in range(8):
        play.raw.churn(20)
        play.raw.compact()
        play.rest(0.05)


def compacted_behind(play: Play) -> None:
    """While a watch is cut off: what it would go on from is no more."""
    with refused(play.stage.ways):
        play.raw.churn(60)
        play.raw.compact()


def absent_at_start(play: Play) -> None:
    """A store that is opened while the server is down says so in time, or waits for it as long as it is asked to."""
    server, problems = play.stage.server, play.record.problems
    server.kill()
    began = time.monotonic()
    try:
        latchwork.connect(play.url(), connect_timeout_s=0.5).close()
        problems.append("connecting to an absent server succeeded")
    except ConnectFailed:
        if time.monotonic() - began > 0.5 + play.record.patience.grace_s:
            problems.append("an absent server was noticed late")
    start = threading.Timer(1.0, server.start)
    start.start()
    try:
        with latchwork.connect(play.url(), connect_timeout_s=20) as store:
            store.put("reg/3", b"late:1")
    except LatchworkError as error:
        problems.append(f"a server that came up was not found: {error}")
    start.join()


def forked(play: Play) -> None:
    """A process forks after connecting: the child gets a clear error from every call, the parent goes on."""
    with contextlib.closing(Remote("trials.contract.processes:fork", play.url())) as parent:
        try:
            play.record.problems.extend(parent.fork(play.record.patience.grace_s))
        except (AssertionError, LatchworkError) as error:
            play.record.problems.append(f"forking: {str(error)[-2000:]}")


def leader_killed(play: Play) -> None:
    """Again and again; the one before comes back in between."""
    for _ in range(3):
        leader = play.stage.server.leader()
        with killed(leader):
            _await_another_leader(play, leader)
            play.rest(0.3)
        came_true(lambda leader=leader: play.stage.serves(leader))


def deposed_leader_woken(play: Play) -> None:
    """It believes that it leads, while the others have written on without it."""
    leader = play.attached[0]
    with frozen(leader):
        _await_another_leader(play, leader)
        play.rest(0.5 * play.ttl_s)


def cut_off(play: Play) -> None:
    """Client a's member loses the others, while the client stays connected to it."""
    stage, member = play.stage, play.attached[0]
    led = member.is_leader()
    until = time.monotonic() + _THRICE * play.ttl_s
    with isolated(stage, member):
        alone = came_true(lambda: not stage.serves(member), _THRICE * play.ttl_s)
        others = [other for other in stage.members if other is not member]
        went_on = came_true(
            lambda: any(stage.serves(other) for other in others) and any(other.is_leader() for other in others), 20.0
        )
        play.rest(max(0.0, until - time.monotonic()))
    play.missed(alone, "the member that was cut off served all the same")
    play.missed(went_on, "no other leader arose" if led else "the others did not go on")


def link_cut(play: Play) -> None:
    """Client a's follower loses the leader, while the client stays connected to it."""
    stage, follower, leader = play.stage, play.attached[0], play.stage.server.leader()
    until = time.monotonic() + _THRICE * play.ttl_s
    with unlinked(stage, follower, leader):
        # It serves no more, or has found itself another leader: itself, or one that it can still reach.
        noticed = came_true(lambda: not leader.is_leader() or not stage.serves(follower), _THRICE * play.ttl_s)
        play.rest(max(0.0, until - time.monotonic()))
        reachable = _listens(follower)
    play.missed(noticed, "the follower went on with its leader")
    play.missed(reachable, "the client could not reach the follower either")


def stopped_in_a_write(play: Play) -> None:
    """Another process holds sqlite's write lock and stands still."""
    is_locked, path = threading.Event(), str(play.stage.path(ROOT))
    holder = Remote("trials.contract.processes:hold_lock", path, report=lambda _: is_locked.set())
    with contextlib.closing(holder):
        assert is_locked.wait(20.0)
        with frozen(holder):
            _expect(play, Unavailable, "a process stopped inside a write")
            play.rest(0.5)


def disk_full(play: Play) -> None:
    with full(play.stage.directory):
        _expect(play, QuotaExceeded, "a full disk", value=b"x" * 500_000)


def files_unwritable(play: Play) -> None:
    """For one of the processes: the kernel refuses each of its writes to a file."""
    play.victim.limit_files(0)
    play.rest(_HALF * play.ttl_s)
    play.victim.limit_files(resource.RLIM_INFINITY)


def file_moved_away(play: Play) -> None:
    """And back: meanwhile nothing may be written to where it was."""
    path = play.stage.path(ROOT)
    with moved_away(path):
        _expect(play, Unavailable, "a file that was moved away")
        if path.exists():
            play.record.problems.append("a new file appeared where the old one had been")


FAULTS = [
    Fault("server killed", server_killed),
    Fault("server stopped for half a TTL", lasting(lambda play: frozen(play.stage.server), _HALF)),
    Fault("server stopped for three TTLs", lasting(lambda play: frozen(play.stage.server), _THRICE)),
    Fault("client frozen past its TTL", client_frozen, BACKENDS, victim=True),
    Fault("client killed", client_killed, BACKENDS, victim=True),
    Fault("connections cut", connection_cut),
    Fault("requests lost, then cut", one_way_cut("requests")),
    Fault("answers lost, then cut", one_way_cut("answers")),
    Fault("black hole for half a TTL", silence(_HALF)),
    Fault("black hole for three TTLs", silence(_THRICE)),
    Fault("requests held for three TTLs", silence(_THRICE, "requests")),
    Fault("answers held for three TTLs", silence(_THRICE, "answers")),
    Fault("writes land late", write_delayed),
    Fault("session revoked from outside", session_revoked, BACKENDS),
    Fault("compacted under watches", compacted, tuple(ETCD)),
    Fault("compacted behind a watch", compacted_behind, tuple(ETCD)),
    Fault("server absent at start", absent_at_start),
    Fault("process forked", forked, BACKENDS),
    Fault("leader killed, three times", leader_killed, members=3),
    Fault("deposed leader woken", deposed_leader_woken, members=3, attach="leader"),
    Fault("leader cut off", cut_off, members=3, attach="leader", cuts=True),
    Fault("follower cut off", cut_off, members=3, attach="follower", cuts=True),
    Fault("follower's link to its leader cut", link_cut, members=3, attach="follower", cuts=True),
    Fault("stopped inside a write", stopped_in_a_write, _SQLITE),
    Fault("disk full", disk_full, _SQLITE, disk=True),
    Fault("files may not be written", files_unwritable, _SQLITE, victim=True),
    Fault("file moved away and back", file_moved_away, _SQLITE),
]
BY_NAME = {fault.name: fault for fault in FAULTS}


def _vanishes(play: Play) -> bool:
    """Whether the victim's keys do, in time."""
    return came_true(lambda: "alive/v" not in {one.key for one in play.raw.state()}, _VANISH * play.ttl_s)


def _held(play: Play) -> None:
    play.missed(play.stage.ways.held_bytes(), "nothing was sent that could be held back")


def _listens(member: Any) -> bool:
    """Whether the way to it is open for those who are not servers."""
    host, _, port = member.endpoint.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
        return True
    return False


def _await_another_leader(play: Play, old: object) -> None:
    others = [member for member in play.stage.members if member is not old]
    if not came_true(lambda: any(member.running and member.is_leader() for member in others), 20.0):
        play.record.problems.append("the others elected no leader")


def _expect(play: Play, error: type[LatchworkError], what: str, *, value: bytes = b"x") -> None:
    """A write of client a's store ends with this error, in time, and is not applied."""
    began = time.monotonic()
    try:
        play.a.store.put("reg/refused", value)
        play.record.problems.append(f"a write succeeded under {what}")
    except error:
        pass
    except LatchworkError as other:
        play.record.problems.append(f"{what} gave {type(other).__name__} ({other}), not {error.__name__}")
    if time.monotonic() - began > play.record.call_timeout_s + play.record.patience.grace_s:
        play.record.problems.append(f"a write under {what} took {time.monotonic() - began:.1f} s")
