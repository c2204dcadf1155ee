"""Elections in terms, on every backend."""

from __future__ import annotations

import threading

import pytest

from latchwork.errors import Closed, Conflict, InvalidKey, LatchworkError, NotLeader, WaitTimeout
from latchwork.primitives import Election
from latchwork.types import Put

TTL_S = 1.0


@pytest.fixture
def election(connect):
    """Make an election with a client, and so a session, of its own; closed after the test."""
    made = []

    def make(node_id, *, store=None, name="boss", **options):
        made.append(Election(store or connect(session_ttl_s=TTL_S), name, node_id=node_id, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_campaigns_are_won_in_the_order_of_their_arrival(election, in_thread, eventually):
    elections = [election(f"n{number}") for number in range(4)]
    first = elections[0].campaign(timeout_s=5.0)
    waiting = []
    for number, each in enumerate(elections[1:]):
        waiting.append(in_thread(lambda each=each: each.campaign(timeout_s=30.0)))
        eventually(lambda number=number: len(elections[0].candidates()) == number + 2)
    terms = [first]
    for each in waiting:
        terms[-1].resign()
        terms.append(each.outcome())
        assert elections[0].leader().node_id == terms[-1]._election.node_id
    tokens = [term._campaign_lock._require_held_lock().position.fence.token for term in terms[-1:]]
    assert tokens[0] > 0
    assert [term.is_leader for term in terms] == [False, False, False, True]


def test_the_leaders_value_is_seen_and_changed_without_an_election(election, store):
    mine, other = election("n1"), election("n2")
    with mine.campaign(b"10.0.0.1:80") as term:
        assert other.leader().value == b"10.0.0.1:80"
        token = term.fence.token
        term.proclaim(b"\xff\x00 any bytes")
        leader = other.leader()
        assert (leader.node_id, leader.value, leader.token) == ("n1", b"\xff\x00 any bytes", token)
        store.commit([term.fence], [Put("plan", b"still ours")])
    assert other.leader() is None


def test_a_proclamation_after_the_term_is_refused_and_changes_nothing(election, in_thread, eventually):
    mine, other = election("n1"), election("n2")
    term = mine.campaign(b"old")
    place = term._campaign_lock._require_held_lock().position
    waiting = in_thread(lambda: other.campaign(b"new", timeout_s=30.0))
    eventually(lambda: len(mine.candidates()) == 2)
    term._campaign_lock._store.delete(
        place.ticket.key
    )  # as when the session ended on the server, and nobody told us yet
    with pytest.raises(NotLeader, match="nothing was announced"):
        term.proclaim(b"late")
    waiting.outcome()
    assert mine.leader().value == b"new"
    term.close()
    with pytest.raises(NotLeader):
        term.proclaim(b"later")


def test_an_observer_sees_every_leader_and_value_that_lasts(election, in_thread, eventually):
    mine, other = election("n1"), election("n2")
    with election("onlooker").observe() as seen:
        assert seen.next(10.0) is None
        term = mine.campaign(b"one")
        assert (leader := seen.next(10.0)).node_id == "n1"
        assert leader.value == b"one"
        term.proclaim(b"two")
        assert seen.next(10.0).value == b"two"
        waiting = in_thread(lambda: other.campaign(b"three", timeout_s=30.0))
        eventually(lambda: len(mine.candidates()) == 2)
        with pytest.raises(WaitTimeout):
            seen.next(0.1)  # a campaign that waits is no news
        term.resign()
        assert seen.next(10.0).value == b"three"
        waiting.outcome().resign()
        assert seen.next(10.0) is None


def test_closing_an_observer_ends_its_iteration(election, in_thread):
    observer = election("onlooker").observe()
    following = in_thread(lambda: list(observer))
    observer_is_told = threading.Timer(0.1, observer.close)
    observer_is_told.start()
    assert following.outcome() == [None]


def test_a_campaign_that_times_out_leaves_nothing_behind(election):
    mine, other = election("n1"), election("n2")
    with mine.campaign():
        with pytest.raises(WaitTimeout, match="election 'boss' is held by 'n1'"):
            other.campaign(timeout_s=0.1)
        with pytest.raises(WaitTimeout):
            other.campaign(timeout_s=0.0)
        assert [each.node_id for each in mine.candidates()] == ["n1"]


def test_one_election_can_be_campaigned_for_again_and_again(election):
    mine = election("n1")
    tokens = []
    for _ in range(3):
        with mine.campaign() as term:
            tokens.append(term.fence.token)
    assert tokens == sorted(set(tokens))
    assert mine.candidates() == []


def test_a_lost_term_tells_its_listeners_and_its_work(election, connect, store, eventually):
    session_store = connect(session_ttl_s=TTL_S)
    mine = election("n1", store=session_store)
    term = mine.campaign()
    told = []
    term.on_lost(lambda: told.append("lost"))
    fence = term.fence
    with term.guard_work() as work:
        session_store.session.mark_ended()
        assert work.wait(10.0)
        with pytest.raises(NotLeader):
            work.raise_if_stopped()
    eventually(lambda: told == ["lost"])
    assert term.lost.is_set()
    assert not term.is_leader
    eventually(lambda: mine.leader() is None)
    with pytest.raises(Conflict):
        store.commit([fence], [Put("plan", b"late")])
    with pytest.raises(NotLeader):
        term.resign()
    with mine.campaign() as again:
        assert again.fence.token > fence.token


def test_run_gives_the_result_and_resigns(election):
    mine = election("n1")
    assert mine.run(lambda term, work: (term.is_leader, work.is_stopped), b"value") == (True, False)
    assert mine.leader() is None


def test_run_campaigns_again_after_a_loss_until_its_work_ends_by_itself(election, connect, in_thread):
    store = connect(session_ttl_s=TTL_S)
    mine = election("n1", store=store)
    tokens, leading = [], threading.Event()

    def lead(term, work):
        tokens.append(term.fence.token)
        leading.set()
        if len(tokens) == 1:
            while True:
                work.raise_if_stopped()
                work.wait(0.05)
        return "done"

    running = in_thread(lambda: mine.run(lead))
    assert leading.wait(10.0)
    store.session.mark_ended()
    assert running.outcome() == "done"
    assert tokens == sorted(set(tokens))


def test_run_lets_errors_through_and_resigns(election):
    mine = election("n1")
    with pytest.raises(ZeroDivisionError):
        mine.run(lambda _term, _work: 1 / 0)
    assert mine.leader() is None


def test_closing_resigns_and_calls_campaigns_off(election, in_thread, eventually):
    mine, other = election("n1"), election("n2")
    term = mine.campaign()
    waiting = in_thread(other.campaign)
    eventually(lambda: len(mine.candidates()) == 2)
    other.close()
    with pytest.raises(Closed):
        waiting.outcome(5.0)
    mine.close()
    assert not term.is_leader
    assert mine.candidates() == []
    term.resign()
    with pytest.raises(Closed, match="election 'boss' was closed"):
        mine.campaign()


def test_campaigning_in_a_callback_is_an_error_instead_of_a_hang(election, connect, eventually):
    store = connect()
    mine, errors = election("n1", store=store), []

    def callback(_batch):
        try:
            mine.campaign()
        except LatchworkError as error:
            errors.append(str(error))

    with store.watch("boss") as watch:
        watch.subscribe(callback)
        eventually(lambda: errors)
    assert "must not be waited for in a callback" in errors[0]


@pytest.mark.parametrize("name", ["", "a//b"])
def test_a_malformed_name_is_refused_before_any_io(name):
    with pytest.raises(InvalidKey, match="election name"):
        Election(None, name, node_id="n1")
