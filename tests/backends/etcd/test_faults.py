"""Servers that die, stop, compact and revoke. Each test hurts a server of its own."""

from __future__ import annotations

import shutil
import threading
import time

import pytest

from latchwork.backends.base import Current, Snapshot
from latchwork.errors import ConnectFailed, SessionLost, Unavailable
from latchwork.types import Create, Put, SessionAlive
from latchwork_testkit.etcd_rpc import pb
from latchwork_testkit.servers import ETCD_VERSIONS, EtcdCluster, EtcdServer


@pytest.fixture(params=ETCD_VERSIONS)
def own(request):
    with EtcdServer(request.param) as server:
        yield server


def test_watch_session_and_calls_go_on_after_kill_and_restart(own, opened, collector, raw_client, eventually):
    backend = opened(own.url("faults", call_timeout_s=5))
    seen, gone = collector(), threading.Event()
    backend.watch("w", seen)
    session = backend.open_session(10, gone.set).result(5)
    backend.commit([], [Create("w/bound", b"1", session), Put("w/plain", b"1")]).result(5)
    seen.wait_until(lambda it: it.values() == {"w/bound": b"1", "w/plain": b"1"})
    own.kill()
    write = backend.commit([], [Put("w/plain", b"2")])
    own.restart()
    back_at = time.monotonic()
    write.result(5)
    assert time.monotonic() - back_at < 1.0
    raw_client(own).put(b"/faults/w/other", b"1")
    seen.wait_until(lambda it: it.values() == {"w/bound": b"1", "w/plain": b"2", "w/other": b"1"}, 3)
    assert session.renew().result(5) > session.opened_at
    assert backend.get("w/bound", stale_ok=False).result(5).owner == session.id
    assert sum(isinstance(event, Snapshot) for event in seen.events) == 1, "it resumed by revision"
    assert not gone.is_set()


def test_a_watch_hears_of_a_server_that_has_gone_back_to_a_backup(own, opened, collector, raw_client, tmp_path):
    backend = opened(own.url("faults", call_timeout_s=5))
    seen, leaf = collector(), collector()
    backend.commit([], [Put("w/kept", b"1"), Put("leaf", b"1")]).result(5)
    own.kill()
    shutil.copytree(own.data_dir, tmp_path / "backup")
    own.restart()
    backend.watch("w", seen)
    backend.watch("leaf", leaf, single_key=True)
    for number in range(20):
        backend.commit([], [Put("w/lost", str(number).encode()), Put("leaf", b"2")]).result(5)
    seen.wait_until(lambda it: it.values().get("w/lost") == b"19")
    leaf.wait_until(lambda it: it.values() == {"leaf": b"2"})
    own.kill()
    shutil.rmtree(own.data_dir)
    shutil.copytree(tmp_path / "backup", own.data_dir)
    own.restart()
    raw_client(own).put(b"/faults/w/new", b"1")
    seen.wait_until(lambda it: it.values() == {"w/kept": b"1", "w/new": b"1"}, 5)
    leaf.wait_until(lambda it: it.values() == {"leaf": b"1"}, 5)


@pytest.mark.serial
def test_calls_while_the_server_is_down_are_exact_and_on_time(own, opened):
    backend = opened(own.url("faults", call_timeout_s=1))
    backend.commit([], [Put("k", b"1")]).result(5)
    own.kill()
    started = time.monotonic()
    while backend._connection.healthy and time.monotonic() < started + 5:
        backend.get("k", stale_ok=False)
        time.sleep(0.02)
    started = time.monotonic()
    calls = [
        backend.commit([], [Put("k", b"2")]),
        backend.get("k", stale_ok=False),
        backend.list("", recursive=True, limit=None, start_after=None),
        backend.delete_tree("k"),
        backend.create_sequential("n/", b"", None),
        backend.open_session(5, lambda: None),
    ]
    for call in calls:
        with pytest.raises(Unavailable):
            call.result(5)
    assert time.monotonic() - started < 1.3
    own.restart()
    assert backend.get("k", stale_ok=False).result(5).value == b"1"


@pytest.mark.serial
def test_stopped_server_does_not_hang_calls_and_serves_again_when_woken(own, opened):
    backend = opened(own.url("faults", call_timeout_s=1))
    backend.commit([], [Put("k", b"1")]).result(5)
    own.pause()
    started = time.monotonic()
    reads = [backend.get("k", stale_ok=False), backend.commit([], [Put("k", b"2")])]
    for future in reads:
        assert future.exception(5) is not None
    assert time.monotonic() - started < 1.6
    own.resume()
    woken_at = time.monotonic()
    while backend.get("k", stale_ok=False).exception(5) is not None:
        assert time.monotonic() - woken_at < 3
    assert backend.commit([], [Put("k", b"3")]).result(5).entries[0].value == b"3"


def test_compaction_while_a_watch_is_cut_off_gives_a_new_snapshot_with_nothing_lost(
    own, opened, proxied, collector, raw_client
):
    proxy, raw = proxied(own), raw_client(own)
    backend = opened(f"etcd://{proxy.endpoint}/faults")
    seen = collector()
    raw.put(b"/faults/w/deleted", b"1")
    backend.watch("w", seen)
    seen.wait_until(lambda it: any(isinstance(event, Current) for event in it.events))
    proxy.refuse(new_only=True)
    proxy.cut_clients()
    raw.kv.DeleteRange(pb.DeleteRangeRequest(key=b"/faults/w/deleted"), timeout=5)
    for number in range(10):
        raw.put(b"/faults/w/kept", b"%d" % number)
    raw.compact()
    proxy.accept()
    seen.wait_until(lambda it: it.values() == {"w/kept": b"9"})
    assert sum(isinstance(event, Snapshot) for event in seen.events) == 2
    raw.put(b"/faults/w/kept", b"live")
    seen.wait_until(lambda it: it.values() == {"w/kept": b"live"})


def test_compaction_under_idle_and_busy_watches_loses_nothing(own, opened, collector, raw_client):
    backend, raw = opened(own.url("faults")), raw_client(own)
    idle, busy = collector(), collector()
    backend.watch("idle", idle)
    backend.watch("busy", busy)
    for number in range(200):
        raw.put(b"/faults/busy/k", b"%d" % number)
        if number % 20 == 0:
            raw.compact()
    raw.put(b"/faults/idle/k", b"1")
    busy.wait_until(lambda it: it.values() == {"busy/k": b"199"})
    idle.wait_until(lambda it: it.values() == {"idle/k": b"1"})
    tokens = [change.entry.token for event in busy.events for change in getattr(event, "changes", ())]
    assert tokens == sorted(tokens)


def test_lease_revoked_from_outside_is_told_and_nothing_of_the_session_lands(own, opened, raw_client):
    backend, raw = opened(own.url("faults")), raw_client(own)
    gone = threading.Event()
    session = backend.open_session(30, gone.set).result(5)
    backend.commit([], [Create("mine", b"", session)]).result(5)
    raw.lease.LeaseRevoke(pb.LeaseRevokeRequest(ID=int(session.id, 16)), timeout=5)
    assert gone.wait(2)
    with pytest.raises(SessionLost, match=session.id):
        session.renew().result(5)
    for op in (Put("mine", b"", session), Create("other", b"", session)):
        with pytest.raises(SessionLost, match=session.id):
            backend.commit([], [op]).result(5)
    assert backend.commit([SessionAlive(session.id)], []).exception(5).failed == (SessionAlive(session.id),)
    assert backend.get("mine", stale_ok=False).result(5) is None
    session.close().result(5)


def test_session_of_a_server_that_went_away_for_good_does_not_hold_up_close(own, opened):
    backend = opened(own.url("faults"))
    backend.open_session(10, lambda: None).result(5)
    backend.watch("", lambda event: None)
    own.kill()
    started = time.monotonic()
    backend.close()
    assert time.monotonic() - started < 3


def test_server_absent_at_start_and_coming_up_in_time_is_found(own, opened):
    own.kill()
    starting = threading.Timer(0.3, own.restart)
    starting.start()
    try:
        backend = opened(own.url("faults", connect_timeout_s=10))
        assert backend.get("k", stale_ok=False).result(5) is None
    finally:
        starting.join()  # it waits until the server says that it is ready; closing one meanwhile would fail there


def test_unreachable_server_is_connect_failed_in_time(own, opened):
    own.kill()
    started = time.monotonic()
    with pytest.raises(ConnectFailed, match=f"etcd did not answer at {own.endpoint} within 0.5 s.*refused"):
        opened(own.url("faults", connect_timeout_s=0.5))
    assert time.monotonic() - started < 1.0


def test_member_that_lost_the_others_is_left_for_one_that_serves(opened, collector, eventually):
    with EtcdCluster(3, version="3.5") as cluster:
        ordered = [*cluster.followers(), cluster.leader()]
        hosts = ",".join(member.endpoint for member in ordered)
        backend = opened(f"etcd://{hosts}/faults?call_timeout_s=6")
        seen = collector()
        backend.watch("w", seen)
        session = backend.open_session(5, lambda: None).result(5)
        backend.commit([], [Put("w/k", b"1", session)]).result(5)
        ordered[0].pause()
        started = time.monotonic()
        assert backend.get("w/k", stale_ok=False).result(7).value == b"1"
        assert time.monotonic() - started < 4
        token = backend.commit([], [Put("w/k", b"2", session)]).result(7).token
        seen.wait_until(lambda it: it.state.get("w/k") is not None and it.state["w/k"].token == token, 10)
        assert session.renew().result(5) > 0
        ordered[0].resume()
        backend.close()


def test_leader_killed_costs_seconds_and_no_answer(opened, collector):
    with EtcdCluster(3, version="3.4") as cluster:
        backend = opened(cluster.url("faults"))
        seen = collector()
        backend.watch("w", seen)
        backend.commit([], [Put("w/k", b"0")]).result(5)
        cluster.leader().kill()
        for number in range(1, 50):
            backend.commit([], [Put("w/k", b"%d" % number)]).result(11)
        seen.wait_until(lambda it: it.values() == {"w/k": b"49"})
        backend.close()
