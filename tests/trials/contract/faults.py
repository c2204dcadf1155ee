"""The faults: what is done to a stage, to which backends it applies, and what the stage needs for it.

A fault returns when the trouble is over. What only it can find wrong it adds to ``record.problems``; that it did not do
what it was to do, it says in ``record.missed``.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import latchwork
from latchwork.errors import ConnectFailed, LatchworkError, QuotaExceeded, Unavailable
from latchwork_testbed.proxy import Way
from trials.contract.stage import BACKENDS, ETCD, SERVERS, Stage
from trials.judges.contract import WRITES
from trials.raw import wait_until

_HALF, _THRICE = 0.5, 3.0
_FROZEN = 1.6
#: In TTL: one, what the server adds, and what a busy machine adds.
_VANISH = 3.0
_SQLITE = ("sqlite",)
_TESTS = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """One kind of trouble.

    Attributes:
        name: in tables.
        inflict: makes it and ends it.
        backends: that it applies to.
        members: servers it needs.
        attach: see ``Stage``.
        victim: see ``Stage``.
        cuts: links between servers are cut, which takes a test network.
        disk: sqlite's file lies on a small file system of its own.
    """

    name: str
    inflict: Callable[[Stage], None]
    backends: tuple[str, ...] = SERVERS
    members: int = 1
    attach: str = "all"
    victim: bool = False
    cuts: bool = False
    disk: bool = False

    @property
    def needs_root(self) -> bool:
        """It takes a file system of its own."""
        return self.disk


def server_killed(stage: Stage) -> None:
    stage.server.kill()
    stage.rest(0.5)
    stage.server.start()


def server_stopped(part: float) -> Callable[[Stage], None]:
    def inflict(stage: Stage) -> None:
        stage.server.pause()
        stage.rest(part * stage.ttl_s)
        stage.server.resume()

    return inflict


def client_frozen(stage: Stage) -> None:
    """For longer than its TTL: others see its keys vanish before it can know."""
    stage.record.exempt.add("v")
    stage.victim.freeze()
    vanished = wait_until(lambda: "alive/v" not in {stored.key for stored in stage.raw.state()}, _VANISH * stage.ttl_s)
    stage.rest(max(0.0, (_FROZEN - 1) * stage.ttl_s))
    stage.victim.wake()
    if not vanished:
        stage.record.problems.append(f"the keys of a frozen client did not vanish within {_VANISH:g} TTL")


def client_killed(stage: Stage) -> None:
    stage.victim.kill()
    if not wait_until(lambda: "alive/v" not in {stored.key for stored in stage.raw.state()}, _VANISH * stage.ttl_s):
        stage.record.problems.append(f"the keys of a killed client did not vanish within {_VANISH:g} TTL")


def connection_cut(stage: Stage) -> None:
    ended = 0
    for _ in range(4):
        ended += sum(proxy.cut() for proxy in stage.proxies)
        stage.rest(0.15)
    _landed(stage, ended > 0, "there was no connection to cut")


def one_way_cut(way: Way) -> Callable[[Stage], None]:
    """One direction is silent; then the connections break, and what was on its way is lost."""

    def inflict(stage: Stage) -> None:
        _each(stage, lambda proxy: proxy.hold(way))
        stage.rest(_HALF * stage.ttl_s)
        _each(stage, lambda proxy: proxy.cut())
        _each(stage, lambda proxy: proxy.release())
        _held(stage)

    return inflict


def silence(part: float, way: Way = "both") -> Callable[[Stage], None]:
    """Nothing passes, or nothing that way; afterwards all that was sent arrives, on connections that nobody cut."""

    def inflict(stage: Stage) -> None:
        _each(stage, lambda proxy: proxy.hold(way))
        stage.rest(part * stage.ttl_s)
        _each(stage, lambda proxy: proxy.release())
        _held(stage)

    return inflict


def write_delayed(stage: Stage) -> None:
    """Requests hang in the network while their client has long connected anew; then they arrive."""
    stage.a.write_on()  # else there is nothing that could arrive late
    stage.rest(0.3)
    held_at = time.monotonic()
    _each(stage, lambda proxy: proxy.hold("requests", present_only=True))
    stage.rest(0.3)
    cut_at = time.monotonic()
    _each(stage, lambda proxy: proxy.cut_clients())
    stage.rest(1.2)
    _each(stage, lambda proxy: proxy.release())
    late = wait_until(lambda: any(proxy.late_bytes for proxy in stage.proxies), 2.0)
    writes = [call for call in stage.record.calls if call.client == "a" and call.kind in WRITES]
    held = any(call.began < cut_at and (call.ended or cut_at) >= cut_at > held_at for call in writes)
    _landed(stage, late and held, f"of the writes, held: {held}, arrived late: {late}")


def session_revoked(stage: Stage) -> None:
    stage.record.exempt.add("a")
    for _ in range(2):
        session = stage.a.session
        assert session is not None
        stage.raw.revoke(session)
        if not session.lost.wait(stage.ttl_s + stage.record.patience.grace_s):
            stage.record.problems.append("a revoked session was not lost within its TTL")
        wait_until(lambda session=session: stage.a.session is not session, 5.0)


def compacted(stage: Stage) -> None:
    """Again and again, under watches that follow."""
    for _ in range(8):
        stage.raw.churn(20)
        stage.raw.compact()
        stage.rest(0.05)


def compacted_behind(stage: Stage) -> None:
    """While a watch is cut off: what it would go on from is no more."""
    _each(stage, lambda proxy: proxy.refuse())
    stage.raw.churn(60)
    stage.raw.compact()
    _each(stage, lambda proxy: proxy.accept())


def absent_at_start(stage: Stage) -> None:
    """A store that is opened while the server is down says so in time, or waits for it as long as it is asked to."""
    stage.server.kill()
    began = time.monotonic()
    try:
        latchwork.connect(stage.url(direct=True), connect_timeout_s=0.5).close()
        stage.record.problems.append("connecting to an absent server succeeded")
    except ConnectFailed:
        if time.monotonic() - began > 0.5 + stage.record.patience.grace_s:
            stage.record.problems.append("an absent server was noticed late")
    start = threading.Timer(1.0, stage.server.start)
    start.start()
    try:
        with latchwork.connect(stage.url(direct=True), connect_timeout_s=20) as store:
            store.put("reg/3", b"late:1")
    except LatchworkError as error:
        stage.record.problems.append(f"a server that came up was not found: {error}")
    start.join()


def forked(stage: Stage) -> None:
    """A process forks after connecting: the child gets a clear error from every call, the parent goes on."""
    done = subprocess.run(
        [sys.executable, "-m", "trials.contract.forked", stage.url(direct=True), str(stage.record.patience.grace_s)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(_TESTS)},
    )
    if done.returncode:
        stage.record.problems.append(f"forking: {done.stderr[-2000:]}")
    else:
        stage.record.problems.extend(json.loads(done.stdout))


def leader_killed(stage: Stage) -> None:
    """Again and again; the one before comes back in between."""
    for _ in range(3):
        leader = stage.server.leader()
        leader.kill()
        _await_another_leader(stage, leader)
        stage.rest(0.3)
        leader.start()
        wait_until(lambda leader=leader: stage.serves(leader))


def deposed_leader_woken(stage: Stage) -> None:
    """It believes that it leads, while the others have written on without it."""
    leader = stage.attached[0]
    leader.pause()
    _await_another_leader(stage, leader)
    stage.rest(0.5 * stage.ttl_s)
    leader.resume()


def cut_off(stage: Stage) -> None:
    """Client a's member loses the others, while the client stays connected to it."""
    member = stage.attached[0]
    led = member.is_leader()
    until = time.monotonic() + _THRICE * stage.ttl_s
    stage.server.network.isolate(stage.members.index(member))
    alone = wait_until(lambda: not stage.serves(member), _THRICE * stage.ttl_s)
    others = [other for other in stage.members if other is not member]
    went_on = wait_until(
        lambda: any(stage.serves(other) for other in others) and any(other.is_leader() for other in others), 20.0
    )
    stage.rest(max(0.0, until - time.monotonic()))
    stage.server.network.heal()
    _landed(stage, alone, "the member that was cut off served all the same")
    _landed(stage, went_on, "no other leader arose" if led else "the others did not go on")


def link_cut(stage: Stage) -> None:
    """Client a's follower loses the leader, while the client stays connected to it."""
    follower, leader = stage.attached[0], stage.server.leader()
    until = time.monotonic() + _THRICE * stage.ttl_s
    stage.server.network.cut(stage.members.index(follower), stage.members.index(leader))
    # It serves no more, or has found itself another leader: itself, or one that it can still reach.
    noticed = wait_until(lambda: not leader.is_leader() or not stage.serves(follower), _THRICE * stage.ttl_s)
    stage.rest(max(0.0, until - time.monotonic()))
    reachable = _listens(follower)
    stage.server.network.heal()
    _landed(stage, noticed, "the follower went on with its leader")
    _landed(stage, reachable, "the client could not reach the follower either")


def stopped_in_a_write(stage: Stage) -> None:
    """Another process holds sqlite's write lock and stands still."""
    code = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
        "connection.execute('ROLLBACK')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(stage.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        _expect(stage, Unavailable, "a process stopped inside a write")
        stage.rest(0.5)
        os.kill(process.pid, signal.SIGCONT)


def disk_full(stage: Stage) -> None:
    ballast = stage.directory / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    _expect(stage, QuotaExceeded, "a full disk", value=b"x" * 500_000)
    ballast.unlink()


def files_unwritable(stage: Stage) -> None:
    """For one of the processes: the kernel refuses each of its writes to a file."""
    stage.victim.limit_files(0)
    stage.rest(_HALF * stage.ttl_s)
    stage.victim.limit_files(resource.RLIM_INFINITY)


def file_moved_away(stage: Stage) -> None:
    """And back: meanwhile nothing may be written to where it was."""
    names = [stage.path.with_name(stage.path.name + suffix) for suffix in ("", "-wal", "-shm")]
    for name in names:
        if name.exists():
            name.rename(name.with_name("moved-" + name.name))
    _expect(stage, Unavailable, "a file that was moved away")
    if stage.path.exists():
        stage.record.problems.append("a new file appeared where the old one had been")
    for name in names:
        if name.with_name("moved-" + name.name).exists():
            name.with_name("moved-" + name.name).rename(name)


FAULTS = [
    Fault("server killed", server_killed),
    Fault("server stopped for half a TTL", server_stopped(_HALF)),
    Fault("server stopped for three TTLs", server_stopped(_THRICE)),
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


def _each(stage: Stage, do: Callable[..., None]) -> None:
    for proxy in stage.proxies:
        do(proxy)


def _landed(stage: Stage, true: bool, else_: str) -> None:
    """Note that the fault did not land, unless it is true."""
    if not true and not stage.record.missed:
        stage.record.missed = else_


def _held(stage: Stage) -> None:
    _landed(stage, any(proxy.held_bytes for proxy in stage.proxies), "nothing was sent that could be held back")


def _listens(member: Any) -> bool:
    """Whether the way to it is open for those who are not servers."""
    host, _, port = member.endpoint.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
        return True
    return False


def _await_another_leader(stage: Stage, old: object) -> None:
    others = [member for member in stage.members if member is not old]
    if not wait_until(lambda: any(member.running and member.is_leader() for member in others), 20.0):
        stage.record.problems.append("the others elected no leader")


def _expect(stage: Stage, error: type[LatchworkError], what: str, *, value: bytes = b"x") -> None:
    """A write of client a's store ends with this error, in time, and is not applied."""
    began = time.monotonic()
    try:
        stage.a.store.put("reg/refused", value)
        stage.record.problems.append(f"a write succeeded under {what}")
    except error:
        pass
    except LatchworkError as other:
        stage.record.problems.append(f"{what} gave {type(other).__name__} ({other}), not {error.__name__}")
    if time.monotonic() - began > stage.record.call_timeout_s + stage.record.patience.grace_s:
        stage.record.problems.append(f"a write under {what} took {time.monotonic() - began:.1f} s")
