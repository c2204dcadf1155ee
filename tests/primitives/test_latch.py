"""Leader election on every backend."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from latchwork.errors import (
    Closed,
    Conflict,
    InvalidKey,
    LatchworkError,
    NotLeader,
    OutcomeUnknown,
    SessionLost,
    Unavailable,
    WaitTimeout,
)
from latchwork.primitives import LeaderLatch
from latchwork.types import Put

TTL_S = 1.0


@pytest.fixture
def candidates(connect):
    """Make a candidate with a client, and so a session, of its own; closed after the test."""
    made = []

    def make(node_id, *, store=None, session=None, name="leader", start=True):
        store = store or connect(session_ttl_s=TTL_S)
        made.append(LeaderLatch(store, name, node_id=node_id, session=session))
        if start:
            made[-1].start()
        return made[-1]

    yield make
    for latch in made:
        latch.close()


@pytest.fixture
def queue(candidates, eventually):
    """Candidates that joined in this order."""

    def make(*node_ids, **options):
        made = []
        for node_id in node_ids:
            made.append(candidates(node_id, **options))
            eventually(lambda: made[-1].state in ("waiting", "leading"))
        return made

    return make


def test_the_first_candidate_leads_and_the_others_wait(queue):
    first, second = queue("n1", "n2")
    first.wait(5.0)
    assert first.is_leader
    assert not second.is_leader
    with pytest.raises(WaitTimeout, match="'n2' does not lead 'leader'"):
        second.wait(0.2)


def test_leadership_goes_round_in_the_order_of_arrival(queue):
    latches = queue("n1", "n2", "n3", "n4", "n5")
    order, tokens = [], []
    for latch in latches:
        tokens.append(latch.wait(5.0).token)
        order.append([each.node_id for each in latches if each.is_leader])
        latch.close()
    assert order == [["n1"], ["n2"], ["n3"], ["n4"], ["n5"]]
    assert tokens == sorted(set(tokens))


def test_candidates_are_listed_in_the_order_in_which_they_will_lead(queue, other):
    latches = queue("n1", "n2", "n3")
    fence = latches[0].wait(5.0)
    onlooker = LeaderLatch(other, "leader", node_id="onlooker")
    assert [found.node_id for found in onlooker.candidates()] == ["n1", "n2", "n3"]
    assert onlooker.leader().node_id == "n1"
    assert onlooker.leader().token == fence.token
    assert LeaderLatch(other, "nobody", node_id="onlooker").leader() is None


def test_a_candidate_that_leaves_while_waiting_leaves_nothing_behind(queue, store):
    first, second, third = queue("n1", "n2", "n3")
    second.close()
    assert [found.node_id for found in third.candidates()] == ["n1", "n3"]
    assert first.is_leader
    first.close()
    third.wait(5.0)
    third.close()
    assert store.list("leader") == []


def test_with_joins_without_waiting_and_leaves_at_the_end(connect, queue):
    (first,) = queue("n1")
    with LeaderLatch(connect(), "leader", node_id="n2") as latch:
        assert not latch.is_leader
        first.close()
        latch.wait(5.0)
        assert latch.is_leader
    assert not latch.is_leader
    assert first.candidates() == []


def test_a_graceful_hand_over_is_quick(queue):
    first, second = queue("n1", "n2")
    first.wait(5.0)
    started_at = time.monotonic()
    first.close()
    second.wait(5.0)
    assert time.monotonic() - started_at < 0.5


def test_the_fence_holds_while_leading_and_is_refused_after(queue, store):
    (latch,) = queue("n1")
    fence = latch.wait(5.0)
    store.commit([fence], [Put("plan", b"1")])
    latch.close()
    with pytest.raises(Conflict):
        store.commit([fence], [Put("plan", b"late")])
    with pytest.raises(NotLeader, match="'n1' does not lead 'leader'"):
        _ = latch.fence


def test_the_fence_is_valid_in_every_namespace(connect, candidates):
    store = connect()
    latch = candidates("n1", store=store.namespace("app"))
    store.namespace("data").commit([latch.wait(5.0)], [Put("plan", b"1")])
    assert store.get("data/plan").value == b"1"


def test_a_session_that_is_handed_in_carries_the_candidacy(connect, candidates):
    store = connect()
    session = store.open_session(TTL_S)
    latch = candidates("n1", store=store, session=session)
    latch.wait(5.0)
    assert latch.leader().session_id == session.id
    second = candidates("n2")
    session.close()
    assert not latch.is_leader  # at once, whatever the latch's thread knows
    second.wait(5.0)
    with pytest.raises((SessionLost, Closed)):
        latch.wait(5.0)


def test_a_lost_session_revokes_before_the_next_leads_and_then_rejoins(connect, candidates, eventually):
    store = connect(session_ttl_s=TTL_S)
    told = []
    first = candidates("n1", store=store)
    first.on_elected(lambda: told.append("elected"))
    first.on_revoked(lambda: told.append("revoked"))
    token = first.wait(5.0).token
    second = candidates("n2")
    eventually(lambda: second.state == "waiting")
    session = store.session
    session.mark_ended()  # as when the server says that it has expired
    assert not first.is_leader
    second.wait(5.0)
    eventually(lambda: first.state == "waiting")
    assert [found.node_id for found in first.candidates()] == ["n2", "n1"]
    second.close()
    assert first.wait(5.0).token > token
    first.close()
    assert told == ["elected", "revoked", "elected", "revoked"]


def test_listeners_added_while_leading_hear_of_it_at_once(queue, eventually):
    (latch,) = queue("n1")
    latch.wait(5.0)
    told = []
    latch.on_elected(lambda: told.append("elected"))
    eventually(lambda: told == ["elected"])


def test_a_listener_that_raises_stops_no_other(queue, eventually):
    first, second = queue("n1", "n2")
    told = []
    second.on_elected(lambda: 1 / 0)
    second.on_elected(lambda: told.append("elected"))
    first.close()
    eventually(lambda: told == ["elected"])


def test_revoked_listeners_end_before_the_next_candidate_leads(queue, eventually):
    first, second = queue("n1", "n2")
    first.wait(5.0)
    order = []
    first.on_revoked(lambda: (time.sleep(0.2), order.append("first has stopped")))
    second.on_elected(lambda: order.append("second leads"))
    first.close()
    second.wait(5.0)
    eventually(lambda: len(order) == 2)
    assert order == ["first has stopped", "second leads"]


def cut_watch(store, monkeypatch, then=lambda: None):
    """Have the next watch of a store fail, as when the server goes; returns an event that tells that it did."""
    watch, has_failed = store.watch, threading.Event()

    def fail(_prefix, **_how):
        monkeypatch.setattr(store, "watch", watch)
        then()
        has_failed.set()
        raise Unavailable("cut")

    monkeypatch.setattr(store, "watch", fail)
    return has_failed


def test_a_leader_that_looks_at_the_queue_again_is_not_elected_again(connect, candidates, monkeypatch, eventually):
    store, told, looks, failed_at = connect(session_ttl_s=30.0), [], [], []
    latch = candidates("n1", store=store, start=False)
    latch.on_elected(lambda: told.append("elected"))
    latch.on_revoked(lambda: told.append("revoked"))
    listing = store.children
    has_failed = cut_watch(store, monkeypatch, lambda: failed_at.append(len(looks)))
    monkeypatch.setattr(store, "children", lambda *args, **options: looks.append(1) or listing(*args, **options))
    latch.start()
    latch.wait(10.0)
    assert has_failed.wait(20.0)
    eventually(lambda: len(looks) > failed_at[0])
    latch.close()
    assert told == ["elected", "revoked"]


def test_a_session_that_ends_revokes_though_the_server_does_not_answer(connect, candidates, monkeypatch, eventually):
    store, told, asked, answer = connect(session_ttl_s=30.0), [], threading.Event(), threading.Event()
    listing = store.children

    def hang(*args, **options):
        asked.set()
        answer.wait(30.0)
        return listing(*args, **options)

    latch = candidates("n1", store=store, start=False)
    latch.on_revoked(lambda: told.append("revoked"))
    cut_watch(store, monkeypatch, lambda: monkeypatch.setattr(store, "children", hang))
    latch.start()
    latch.wait(10.0)
    assert asked.wait(20.0)
    store.session.mark_ended()
    eventually(lambda: told == ["revoked"])
    assert not answer.is_set()
    monkeypatch.setattr(store, "children", listing)
    answer.set()


def test_a_candidate_whose_ticket_is_deleted_by_hand_leads_only_by_another(candidates, store, eventually):
    first = candidates("first")
    first.wait(10.0)
    second = candidates("second")
    eventually(lambda: second.state == "waiting")
    deleted = first.candidates()[1].ticket
    eventually(lambda: second._waiter._watch is not None)
    store.delete(deleted)
    first.close()
    fence = second.wait(10.0)
    assert [each.ticket for each in second.candidates()] == [second._position.ticket.key] != [deleted]
    store.commit([fence], [])


def test_a_latch_that_leaves_leads_no_more_before_its_ticket_is_deleted(connect, candidates, monkeypatch, in_thread):
    store, asked, answer = connect(session_ttl_s=30.0), threading.Event(), threading.Event()
    latch = candidates("n1", store=store)
    latch.wait(10.0)
    deletion = store.delete

    def hang(*args, **options):
        asked.set()
        answer.wait(30.0)
        return deletion(*args, **options)

    monkeypatch.setattr(store, "delete", hang)
    leaving = in_thread(latch.leave)
    assert asked.wait(20.0)
    led, remaining_s = latch.is_leader, latch.remaining_s()
    answer.set()
    leaving.outcome()
    assert (led, remaining_s) == (False, 0.0)


@pytest.mark.threads
def test_a_latch_without_listeners_gives_its_ticket_up_in_the_thread_that_leaves(connect, candidates, monkeypatch):
    store, deleted = connect(), []
    delete = store.delete
    latch = candidates("n1", store=store)
    latch.wait(10.0)
    monkeypatch.setattr(store, "delete", lambda key: deleted.append(threading.current_thread()) or delete(key))
    latch.leave()
    # ZooKeeper reports the deletion before it answers it: the latch's own thread may delete the ticket, too.
    assert deleted[0] == threading.current_thread()
    assert latch.candidates() == []


@pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown])
def test_a_ticket_that_could_not_be_given_up_at_once_is_gone_when_leaving_returns(
    connect, candidates, monkeypatch, error
):
    store, failed = connect(), []
    delete = store.delete
    latch = candidates("n1", store=store)
    latch.wait(10.0)

    def fail_once(key):
        if not failed:
            failed.append(key)
            raise error("cut")
        return delete(key)

    monkeypatch.setattr(store, "delete", fail_once)
    latch.leave()
    assert len(failed) == 1
    assert latch.candidates() == []


def test_closing_from_a_listener_does_not_hang(queue, eventually):
    first, second = queue("n1", "n2")
    second.on_elected(second.close)
    first.close()
    eventually(lambda: second.state == "ended")
    assert second.candidates() == []


def test_a_ticket_deleted_by_hand_revokes_and_the_candidate_queues_again(queue, store, eventually):
    first, second = queue("n1", "n2")
    fence = first.wait(5.0)
    store.delete(first.leader().ticket)
    second.wait(5.0)
    eventually(lambda: first.state == "waiting")
    assert not first.is_leader
    assert [found.node_id for found in first.candidates()] == ["n2", "n1"]
    with pytest.raises(Conflict):
        store.commit([fence], [Put("plan", b"late")])


def test_a_wait_ends_when_the_latch_is_closed(queue):
    _, second = queue("n1", "n2")
    errors = []

    def wait():
        try:
            second.wait()
        except Closed as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    second.close()
    thread.join(5.0)
    assert len(errors) == 1
    second.close()
    with pytest.raises(Closed):
        second.start()


def test_waiting_without_having_started_is_an_error(candidates):
    with pytest.raises(Closed, match="start it before waiting"):
        candidates("n1", start=False).wait(1.0)


def test_each_candidate_watches_exactly_the_one_before_it(connect, candidates, eventually, monkeypatch):
    latches, watched = [], []
    for number in range(5):
        store = connect()
        seen = []
        watched.append(seen)
        watch = store.watch
        monkeypatch.setattr(
            store, "watch", lambda key, seen=seen, watch=watch, **how: seen.append(key) or watch(key, **how)
        )
        latch = candidates(f"n{number}", store=store)
        eventually(lambda: latch.state in ("waiting", "leading") and seen)  # noqa: B023 - asked at once
        latches.append(latch)
    tickets = [found.ticket for found in latches[0].candidates()]
    assert watched == [[tickets[0]], *[[ticket] for ticket in tickets[:-1]]]
    latches[0].close()
    latches[1].wait(5.0)
    assert [len(seen) for seen in watched[2:]] == [1, 1, 1]  # the others were not even woken


@pytest.mark.parametrize("when", ["applied", "never applied"])
def test_a_join_with_a_lost_answer_queues_exactly_once(connect, candidates, monkeypatch, when):
    store = connect()
    create, cut = store.create_ordered_key, []

    def losing(*key, **options):
        if cut:
            return create(*key, **options)
        cut.append(key)
        if when == "applied":
            create(*key, **options)
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(store, "create_ordered_key", losing)
    latch = candidates("n1", store=store)
    latch.wait(5.0)
    assert [found.node_id for found in latch.candidates()] == ["n1"]
    latch.close()
    assert store.list("leader") == []


def test_a_join_that_lands_late_does_not_stay_in_the_queue(connect, candidates, monkeypatch):
    store = connect()
    create, late = store.create_ordered_key, []

    def losing(*key, **options):
        if late:
            return create(*key, **options)
        late.append(lambda: create(*key, **options))
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(store, "create_ordered_key", losing)
    latch = candidates("n1", store=store)
    latch.wait(5.0)
    late[0]()
    second = candidates("n2")
    latch.close()
    second.wait(5.0)
    assert [found.node_id for found in second.candidates()] == ["n2"]


def test_a_leader_that_is_killed_is_followed_when_its_session_ends(holder, candidates):
    first = holder("latch", "leader", TTL_S)
    token = first.hear()["token"]
    second = candidates("n2")
    granted_s = second._store.session.ttl_s
    time.sleep(0.3)
    killed_at = time.monotonic()
    first.send(signal.SIGKILL)
    fence = second.wait(granted_s + 10.0)
    took_s = time.monotonic() - killed_at
    print(f"leads {took_s:.2f} s after the kill; the session's ttl is {granted_s:.2f} s")
    assert took_s < granted_s + 1.0
    assert fence.token > token


def test_a_leader_that_slept_past_its_session_is_refused_and_knows(holder, candidates, store):
    first = holder("latch", "leader", TTL_S)
    first.hear()
    assert first.ask("write") == {"write": "written"}
    second = candidates("n2")
    first.freeze()
    store.commit([second.wait(15.0)], [Put("written", b"by the next")])
    first.wake()
    answers = [first.ask("ours"), first.ask("write"), first.hear()]
    assert {"ours": False} in answers
    assert {"lost": True} in answers
    assert any(answer.get("write") in ("Conflict", "SessionLost") for answer in answers)
    assert store.get("written").value == b"by the next"


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a b", "@x"])
def test_a_malformed_name_is_refused_before_any_io(name):
    with pytest.raises(InvalidKey, match="latch name"):
        LeaderLatch(None, name, node_id="n1")


def test_a_candidate_that_left_can_join_again_at_the_end_of_the_queue(queue, eventually):
    first, second = queue("n1", "n2")
    token = first.wait(5.0).token
    first.leave()
    assert not first.is_leader
    with pytest.raises(Closed, match="start it before waiting"):
        first.wait(1.0)
    second.wait(5.0)
    first.start()
    eventually(lambda: first.state == "waiting")
    assert [found.node_id for found in first.candidates()] == ["n2", "n1"]
    second.leave()
    assert first.wait(5.0).token > token
    first.leave()
    assert first.candidates() == []


def test_listeners_hear_of_each_term_in_turn_also_across_leaving(queue):
    (latch,) = queue("n1")
    told = []
    latch.on_elected(lambda: told.append("elected"))
    latch.on_revoked(lambda: told.append("revoked"))
    for _ in range(3):
        latch.start()
        latch.wait(5.0)
        latch.leave()
    assert told == ["elected", "revoked"] * 3


def test_a_listener_that_was_taken_back_hears_nothing(queue, eventually):
    first, second = queue("n1", "n2")
    told = []
    second.on_elected(lambda: told.append("first"))()
    second.on_elected(lambda: told.append("second"))
    first.close()
    eventually(lambda: told)
    assert told == ["second"]


def test_starting_from_a_listener_of_the_leaving_latch_is_an_error_instead_of_a_hang(queue, eventually):
    (latch,) = queue("n1")
    latch.wait(5.0)
    errors = []

    def again():
        try:
            latch.start()
        except LatchworkError as error:
            errors.append(str(error))

    latch.on_revoked(again)
    latch.leave()
    eventually(lambda: errors)
    assert "leaving and waits for this listener" in errors[0]


@pytest.mark.threads
def test_waiting_for_leadership_in_a_callback_is_an_error_instead_of_a_hang(queue, eventually):
    _, second = queue("n1", "n2")
    errors = []

    def wait():
        try:
            second.wait(5.0)
        except LatchworkError as error:
            errors.append(str(error))

    third = queue("n3")[0]
    third._announcer.post(wait)
    eventually(lambda: errors)
    assert "must not be waited for in a callback" in errors[0]


def test_run_gives_the_result_of_work_that_was_not_told_to_stop(queue):
    (latch,) = queue("n1")
    assert latch.run(lambda work: (work.fence.token, work.is_stopped)) == (latch.fence.token, False)


def test_run_tells_its_work_to_stop_and_runs_it_again_when_it_leads_again(connect, candidates, queue, in_thread):
    store = connect(session_ttl_s=TTL_S)
    latch = candidates("n1", store=store)
    terms, leading = [], threading.Event()

    def work(token):
        terms.append(token.fence.token)
        leading.set()
        return len(terms) if len(terms) == 2 else token.wait(20.0)

    running = in_thread(lambda: latch.run(work))
    assert leading.wait(10.0)
    store.session.mark_ended()
    assert running.outcome() == 2
    assert terms == sorted(set(terms))


def test_run_waits_for_a_renewal_instead_of_running_what_would_be_told_to_stop_at_once(queue, in_thread):
    (latch,) = queue("n1")
    latch.wait(5.0)
    calls = []
    running = in_thread(lambda: latch.run(calls.append, margin_s=10 * TTL_S))
    threading.Event().wait(0.3)
    latch.close()
    with pytest.raises(Closed):
        running.outcome()
    assert calls == []


def test_run_goes_on_after_the_latch_was_left_and_started_again(queue, in_thread, eventually):
    first, second = queue("n1", "n2")
    first.wait(5.0)
    running = in_thread(lambda: second.run(lambda work: work.fence.token))
    eventually(lambda: second.state == "waiting")
    second.leave()
    threading.Event().wait(0.1)
    second.start()
    eventually(lambda: second.state == "waiting")
    first.close()
    assert running.outcome() > 0


def test_run_of_a_latch_that_was_left_ends_when_it_is_closed(queue, in_thread, eventually):
    first, second = queue("n1", "n2")
    first.wait(5.0)
    running = in_thread(lambda: second.run(lambda _work: None))
    eventually(lambda: second.state == "waiting")
    second.leave()
    second.close()
    with pytest.raises(Closed):
        running.outcome()


def test_run_of_a_latch_that_was_left_ends_with_its_store(connect, candidates, in_thread):
    store = connect(session_ttl_s=TTL_S)
    latch = candidates("n1", store=store)
    latch.wait(5.0)
    running = in_thread(lambda: latch.run(lambda work: work.wait()))
    latch.leave()
    store.close()
    with pytest.raises(Closed):
        running.outcome()


def test_run_ends_with_the_error_of_its_work_and_the_latch_stays(queue):
    (latch,) = queue("n1")
    with pytest.raises(ZeroDivisionError):
        latch.run(lambda _work: 1 / 0)
    assert latch.is_leader


def test_leaving_tells_the_work_to_stop_at_once(queue):
    (latch,) = queue("n1")
    latch.wait(5.0)
    with latch.guard_work() as work:
        latch.leave()
        assert work.stopped.is_set()
        with pytest.raises(NotLeader):
            work.raise_if_stopped()
    with pytest.raises(NotLeader):
        latch.guard_work()


def test_no_mutex_is_held_while_a_thread_is_started_for_a_listener(candidates, eventually):
    """The thread of an event loop may need the mutex, and whoever starts a thread waits until it runs."""
    latch, told = candidates("a", start=False), []
    signal_lane = latch._announcer._serial_drain.signal

    def signal_without_mutex():
        with latch._changed.mutex:  # refuses a thread that has it
            pass
        signal_lane()

    latch._announcer._serial_drain.signal = signal_without_mutex
    latch.on_elected(lambda: told.append("elected"))
    latch.on_revoked(lambda: told.append("revoked"))
    latch.start()
    latch.wait(30.0)
    latch.on_elected(lambda: told.append("already"))
    latch.leave()
    assert eventually(lambda: told == ["elected", "already", "revoked"])
