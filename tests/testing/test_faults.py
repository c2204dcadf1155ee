"""A store whose trouble a test decides: each kind of fault is what the contract says it is."""

from __future__ import annotations

import contextlib
import itertools

import pytest

import latchwork
from latchwork import At, Fence, OutcomeUnknown, Put, SessionLost, Unavailable
from latchwork.testing.faults import Fault, FaultyStore, RandomFaults
from latchwork.testing.simulation import Simulation

names = itertools.count()


@pytest.fixture
def sim():
    with Simulation() as simulation:
        yield simulation


@pytest.fixture
def url():
    return f"memory://faults-{next(names)}"


@pytest.fixture
def plain(sim, url):
    """The same data, without faults."""
    with latchwork.connect(url) as store:
        yield store


@pytest.fixture
def faulty(sim, plain, url):
    with FaultyStore(latchwork.connect(url, session_ttl_s=2, call_timeout_s=5)) as store:
        yield store


# One call


def test_without_faults_it_is_a_store_like_any_other(faulty, plain):
    assert isinstance(faulty, latchwork.Store)
    faulty.put("a/b", b"1")
    assert plain.get("a/b").value == b"1"
    with faulty.watch("a") as watch:
        assert [change.key for change in watch.next(1)] == ["a/b"]
        plain.put("a/c", b"2")
        assert [change.key for change in watch.next(1)] == ["a/c"]
    assert faulty.namespace("a").get("c").value == b"2"
    assert faulty.faults == []


def test_a_failed_write_is_unavailable_and_was_not_applied(faulty, plain):
    faulty.add(Fault("fail", op="put"))
    with pytest.raises(Unavailable, match="put of 'a'"):
        faulty.put("a", b"1")
    assert plain.get("a") is None
    faulty.put("a", b"1")
    assert plain.get("a").value == b"1"


def test_a_write_cut_off_before_the_server_is_unknown_and_was_not_applied(faulty, plain):
    faulty.add(Fault("cut_before", op="put"))
    with pytest.raises(OutcomeUnknown):
        faulty.put("a", b"1")
    assert plain.get("a") is None


def test_a_write_cut_off_after_the_server_is_unknown_and_was_applied(faulty, plain):
    faulty.add(Fault("cut_after", op="put"))
    with pytest.raises(OutcomeUnknown):
        faulty.put("a", b"1")
    assert plain.get("a").value == b"1"


def test_a_write_that_lands_late_is_unknown_and_is_applied_after_all(faulty, plain, sim):
    faulty.add(Fault("land_late", op="put", delay_s=3))
    with pytest.raises(OutcomeUnknown):
        faulty.put("a", b"1")
    sim.sleep(2.9)
    assert plain.get("a") is None
    sim.sleep(0.2)
    assert plain.get("a").value == b"1"


def test_a_dropped_write_is_unknown_after_the_call_timeout(faulty, plain, sim):
    faulty.add(Fault("drop", op="put"))
    with pytest.raises(OutcomeUnknown):
        faulty.put("a", b"1")
    assert sim.elapsed_s == 5
    assert plain.get("a") is None


@pytest.mark.parametrize(("kind", "applied_at_once"), [("slow_request", False), ("slow_answer", True)])
def test_a_slow_call_succeeds_late(faulty, plain, sim, kind, applied_at_once):
    faulty.add(Fault(kind, op="put", delay_s=2))
    writer = sim.spawn(lambda: faulty.put("a", b"1"), name="writer")
    sim.sleep(1)
    assert (plain.get("a") is not None) == applied_at_once
    writer.join()
    assert sim.elapsed_s == 2
    assert plain.get("a").value == b"1"


@pytest.mark.parametrize("kind", ["fail", "cut_before", "cut_after", "land_late", "drop"])
def test_a_read_that_is_cut_off_is_unavailable(faulty, kind):
    faulty.put("a", b"1")
    faulty.add(Fault(kind, op="get"))
    with pytest.raises(Unavailable):
        faulty.get("a")
    assert faulty.get("a").value == b"1"


def test_a_refusal_that_is_cut_off_is_unknown_too(faulty):
    entry = faulty.put("a", b"1")
    faulty.put("a", b"2")
    faulty.add(Fault("cut_after", op="commit"))
    with pytest.raises(OutcomeUnknown):
        faulty.commit([At(entry)], [Put("a", b"3")])


# Which call


def test_a_fault_counts_the_calls_that_match_it(faulty, plain):
    faulty.add(Fault("fail", op="put", key="x/*", nth=2, times=2))
    outcomes = []
    for key in ("x/1", "y/1", "x/2", "x/3", "y/2", "x/4"):
        try:
            faulty.put(key, b"")
            outcomes.append("ok")
        except Unavailable:
            outcomes.append("failed")
    assert outcomes == ["ok", "ok", "failed", "failed", "ok", "ok"]
    assert [call.keys for call in faulty.faults] == [("x/2",), ("x/3",)]


def test_a_fault_without_an_end_hits_every_match(faulty):
    faulty.add(Fault("fail", op="get", times=None))
    for _ in range(5):
        with pytest.raises(Unavailable):
            faulty.get("a")


def test_keys_of_checks_are_matched_as_well(faulty):
    entry = faulty.put("lock", b"")
    faulty.add(Fault("fail", op="commit", key="lock"))
    with pytest.raises(Unavailable):
        faulty.commit([At(entry)], [Put("elsewhere", b"")])


def test_calls_through_a_pipeline_meet_the_same_faults(faulty):
    faulty.add(Fault("cut_after", op="put", nth=2))
    with faulty.pipeline() as pipeline:
        futures = [pipeline.put(f"a/{number}", b"") for number in range(3)]
    assert [type(future.exception()) for future in futures] == [type(None), OutcomeUnknown, type(None)]


def test_random_faults_repeat_with_their_seed(sim, url, plain):
    def hits(seed):
        store = FaultyStore(latchwork.connect(url, call_timeout_s=1), RandomFaults(seed, rate=0.3))
        with store:
            for number in range(60):
                with contextlib.suppress(latchwork.LatchworkError):
                    store.put(f"k/{number}", b"")
            return [(call.number, call.fault.kind) for call in store.faults]

    first = hits(1)
    assert 5 < len(first) < 40
    assert hits(1) == first
    assert hits(2) != first


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "explode"},
        {"kind": "fail", "op": "gett"},
        {"kind": "fail", "nth": 0},
        {"kind": "fail", "times": 0},
        {"kind": "slow_answer", "delay_s": -1},
        {"kind": "fail", "op": "event"},
    ],
)
def test_a_fault_that_can_never_happen_is_refused(wrong):
    with pytest.raises(ValueError, match=r"unknown|never happen|watch's event"):
        Fault(**wrong)


# Sessions


def test_an_expired_session_takes_its_keys_along_and_is_lost_at_its_next_renewal(faulty, plain, sim):
    session = faulty.session
    faulty.put("mine", b"", session=session)
    faulty.expire_sessions()
    assert plain.get("mine") is None
    assert session.state == "active", "nobody has told it yet"
    assert session.lost.wait(2)
    with pytest.raises(SessionLost):
        faulty.put("mine", b"", session=session)
    assert faulty.session is not session


def test_one_session_can_be_expired_and_others_live_on(faulty, plain):
    first, second = faulty.open_session(2), faulty.open_session(2)
    faulty.expire_session(first)
    assert first.lost.wait(2)
    assert not second.lost.wait(5)


def test_a_session_whose_renewals_fail_is_lost_after_its_ttl_and_its_keys_vanish(faulty, plain, sim):
    session = faulty.session
    faulty.put("mine", b"", session=session)
    start = sim.now()
    faulty.add(Fault("fail", op="renew", times=None))
    assert session.lost.wait(10)
    assert 1.4 < sim.now() - start <= 2.0
    sim.sleep(1)
    assert plain.get("mine") is None


def test_slow_renewals_count_from_their_send(faulty, sim):
    session = faulty.session
    faulty.add(Fault("slow_answer", op="renew", times=None, delay_s=1.9))
    assert session.lost.wait(20)


def test_a_late_write_of_a_session_that_was_closed_never_lands(faulty, plain, sim):
    session = faulty.open_session(5)
    faulty.add(Fault("land_late", op="put", delay_s=1))
    faulty.add(Fault("cut_before", op="close_session"))
    with pytest.raises(OutcomeUnknown):
        faulty.put("mine", b"", session=session)
    session.close()
    sim.sleep(2)
    assert plain.get("mine") is None


# Reads that may be stale


def test_a_read_that_may_be_stale_shows_the_state_of_a_while_ago(sim, plain, url):
    with FaultyStore(latchwork.connect(url), lag_s=2) as store:
        plain.put("a/old", b"1")
        sim.sleep(3)
        plain.put("a/old", b"2")
        store.put("a/new", b"")
        sim.sleep(1)
        assert store.get("a/old", stale_ok=True).value == b"1"
        assert [entry.key for entry in store.list("a", stale_ok=True)] == ["a/old"]
        assert store.get_many(["a/new", "a/old"], stale_ok=True)[0] is None
        assert store.get("a/old").value == b"2"
        assert [entry.key for entry in store.list("a")] == ["a/new", "a/old"]
        sim.sleep(1.1)
        assert store.get("a/old", stale_ok=True).value == b"2"
        assert [entry.key for entry in store.list("a", stale_ok=True)] == ["a/new", "a/old"]
        assert [entry.key for entry in store.list("a", limit=1, stale_ok=True)] == ["a/new"]
        assert [entry.key for entry in store.list("a", start_after="a/new", stale_ok=True)] == ["a/old"]
        assert store.list("", stale_ok=True) == []
        assert len(store.list("", recursive=True, stale_ok=True)) == 2


# Being cut off


def test_cut_off_nothing_gets_through_and_the_session_is_lost_in_time(faulty, plain, sim):
    session = faulty.session
    faulty.cut_off()
    with pytest.raises(Unavailable, match="cut off"):
        faulty.get("a")
    with pytest.raises(Unavailable):
        faulty.put("a", b"")
    assert session.lost.wait(2.1)
    faulty.reconnect()
    faulty.put("a", b"")
    assert plain.get("a") is not None


def test_a_watch_that_is_cut_off_reports_the_difference_when_it_is_back(faulty, plain, sim):
    plain.put("w/kept", b"")
    plain.put("w/gone", b"")
    with faulty.watch("w") as watch:
        assert len(watch.next(1)) == 2
        faulty.cut_off()
        plain.delete("w/gone")
        plain.put("w/new", b"")
        with pytest.raises(latchwork.WaitTimeout):
            watch.next(3)
        faulty.reconnect()
        assert {change.key: change.entry is not None for change in watch.next(1)} == {"w/gone": False, "w/new": True}


def test_watches_that_break_off_begin_anew_after_their_silence(faulty, plain, sim):
    with faulty.mirror("w") as mirror:
        faulty.cut_watches(silent_s=4)
        plain.put("w/a", b"")
        sim.sleep(3.9)
        assert "w/a" not in mirror
        assert mirror.stale_s() > 3
        sim.sleep(0.2)
        assert "w/a" in mirror
        plain.put("w/b", b"")
        mirror.wait_until(lambda seen: "w/b" in seen, 1)


def test_a_watch_cut_by_a_fault_loses_nothing(faulty, plain, sim):
    faulty.add(Fault("cut_watch", key="w", nth=2, times=3, delay_s=1))
    seen = set()
    with faulty.watch("w") as watch:
        for number in range(6):
            plain.put(f"w/{number}", b"")
            sim.sleep(0.3)
        while len(seen) < 6:
            seen |= {change.key for change in watch.next(10)}
    assert len(faulty.faults) >= 2


def test_a_late_event_keeps_its_place(faulty, plain, sim):
    faulty.add(Fault("slow_answer", op="event", key="w", nth=2, delay_s=2))
    with faulty.watch("w") as watch:
        watch.next(1)
        plain.put("w/1", b"")
        sim.sleep(1)
        plain.put("w/2", b"")
        start = sim.now()
        assert [change.key for change in watch.next(5)] == ["w/1", "w/2"]
        assert sim.now() - start == pytest.approx(1)


# The end


def test_closing_it_closes_the_store_inside(sim, url):
    inner = latchwork.connect(url)
    store = FaultyStore(inner, [Fault("slow_answer", op="put", delay_s=1)])
    store.put("a", b"")
    store.close()
    store.close()
    with pytest.raises(latchwork.Closed):
        inner.get("a")
    with pytest.raises(latchwork.Closed):
        store.get("a")


def test_closing_it_while_cut_off_leaves_its_sessions_to_run_out(faulty, plain, sim, url):
    other = FaultyStore(latchwork.connect(url, session_ttl_s=2))
    other.put("theirs", b"", session=other.session)
    other.cut_off()
    other.close()
    sim.sleep(3)
    assert plain.get("theirs") is None


def test_fences_of_a_faulty_store_hold_in_the_plain_one(faulty, plain):
    entry = faulty.put("lock", b"")
    fence = faulty.namespace("below").fence(entry.token, *[])
    assert isinstance(fence, Fence)
    fence = faulty.fence(entry.token, At(entry))
    plain.commit([fence], [Put("data", b"")])
    plain.put("lock", b"other")
    with pytest.raises(latchwork.Conflict):
        faulty.commit([fence], [Put("data", b"late")])


@pytest.mark.parametrize("kind", ["fail", "cut_before", "cut_after"])
def test_faults_are_the_same_on_every_backend(store, backend_url, kind):
    with FaultyStore(latchwork.connect(backend_url), [Fault(kind, op="put", key="a")]) as faulty:
        with pytest.raises(Unavailable if kind == "fail" else OutcomeUnknown):
            faulty.put("a", b"1")
        assert (store.get("a") is not None) == (kind == "cut_after")
        session = faulty.open_session(2)
        faulty.put("mine", b"", session=session)
        faulty.expire_session(session)
        assert store.get("mine") is None
        assert session.lost.wait(10)
