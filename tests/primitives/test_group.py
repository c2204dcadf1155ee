"""Groups on every backend: who is in, and one sequence of views for all."""

from __future__ import annotations

import gc
import signal
import threading
import time

import pytest
from msgspec.structs import replace

from latchwork._base.event import Signal
from latchwork.errors import (
    Closed,
    Conflict,
    InvalidKey,
    LatchworkError,
    MemberEvicted,
    NodeIdInUse,
    OutcomeUnknown,
    SessionLost,
    Unavailable,
    WaitTimeout,
)
from latchwork.primitives import Group, list_groups
from latchwork.primitives.group import view_log as logs
from latchwork.primitives.group.follower import Replica, SharedViews, ViewFollower
from latchwork.primitives.group.view_log import ViewLog, ViewState
from latchwork.primitives.group.views import ViewChange
from latchwork.store.steps import Pause, run
from latchwork.types import Exists, Put

TTL_S = 1.0


@pytest.fixture
def group(connect):
    """Make a member with a client, and so a session, of its own, and start it; closed after the test."""
    made = []

    def make(member_id=None, name="web", *, store=None, **options):
        one = Group(store or connect(session_ttl_s=TTL_S), name, member_id=member_id, **options)
        made.append(one)
        one.start()
        return one

    yield make
    for each in made:
        each.close()


def ids(*expected):
    return lambda view: view.ids == list(expected)


def recording(group):
    told = []
    group.on_view(told.append)
    return told


def test_members_join_with_attributes_that_all_see(group):
    a = group("a", weight=2.5, labels={"zone": "x"}, address="10.0.0.1:80")
    b = group("b")
    for each in (a, b):
        view = each.wait_until(ids("a", "b"), 10.0)
        first = view.members[0]
        assert (first.weight, first.labels, first.address) == (2.5, {"zone": "x"}, "10.0.0.1:80")
    assert [member.id for member in group().members()] == ["a", "b"]


def test_a_member_that_leaves_is_gone_at_once_and_the_last_leaves_an_empty_group(group):
    a, b = group("a"), group("b")
    a.wait_until(ids("a", "b"), 10.0)
    b.close()
    a.wait_until(ids("a"), 10.0)
    a.close()
    assert group().members() == []


def test_attributes_change_without_rejoining(group, eventually):
    a, b = group("a", labels={"zone": "x"}), group("b")
    b.wait_until(ids("a", "b"), 10.0)
    told = recording(b)
    a.update(weight=3.0, address="there")
    eventually(lambda: [change for change in told if change.changed])
    change = told[-1]
    assert (change.joined, change.left) == ((), ())
    assert [(member.weight, member.address, member.labels) for member in change.changed] == [
        (3.0, "there", {"zone": "x"})
    ]


def test_every_member_is_told_the_same_views_in_the_same_order_without_gaps(group, eventually):
    watchers = [group("w1"), group("w2"), group()]
    for each in watchers:
        each.wait_until(ids("w1", "w2"), 10.0)
    told = [recording(each) for each in watchers]
    started = threading.Barrier(3)

    def come_and_go(name):
        started.wait()
        for number in range(3):
            with group(name) as member:
                member.wait(20.0)
                member.update(weight=float(number))

    threads = [threading.Thread(target=come_and_go, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    last = watchers[0].wait_until(lambda view: view.number > 3 and view.ids == ["w1", "w2"], 20.0).number
    eventually(lambda: all(each and each[-1].view.number >= last for each in told))
    sequences = [{change.view.number: change.view for change in each} for each in told]
    first = max(min(each) for each in sequences)
    for each, changes in zip(sequences, told, strict=True):
        numbers = [change.view.number for change in changes]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert [each[number] for number in range(first, last + 1)] == [
            sequences[0][number] for number in range(first, last + 1)
        ]


def test_differences_lead_from_view_to_view(group, eventually):
    a = group("a")
    a.wait(10.0)
    told = recording(a)
    with group("b"):
        a.wait_until(ids("a", "b"), 10.0)
    a.wait_until(ids("a"), 10.0)
    eventually(lambda: len(told) >= 3 and told[-1].view.ids == ["a"])
    members = set()
    for change in told:
        members -= {member.id for member in change.left}
        members |= {member.id for member in change.joined}
        assert sorted(members) == change.view.ids
    assert [[member.id for member in change.joined] for change in told[:2]] == [["a"], ["b"]]


def test_a_listener_that_comes_late_is_told_the_view_that_is_there(group, eventually):
    a = group("a")
    a.wait(10.0)
    told = recording(a)
    eventually(lambda: told)
    assert [member.id for member in told[0].joined] == ["a"]


def test_a_killed_member_is_gone_within_the_ttl(holder, group):
    a = group("a")
    dying = holder("group", "web", TTL_S)
    dying.hear()
    a.wait_until(ids("a", "holder"), 10.0)
    granted_s = a._store.session.ttl_s
    killed_at = time.monotonic()
    dying.send(signal.SIGKILL)
    a.wait_until(ids("a"), granted_s + 10.0)
    assert time.monotonic() - killed_at < granted_s + 3.0


def test_others_write_the_views_while_the_oldest_member_is_frozen(holder, group):
    oldest = holder("group", "web", 10.0)
    oldest.hear()
    oldest.freeze()
    a = group("a")
    assert a.wait(8.0).ids == ["a", "holder"]
    oldest.wake()


def test_a_member_whose_session_is_lost_joins_again_as_a_new_incarnation(group, connect, eventually):
    store = connect(session_ttl_s=TTL_S)
    a, b = group("a", store=store), group("b")
    view = b.wait_until(ids("a", "b"), 10.0)
    told = recording(b)
    store.session.mark_ended()
    b.wait_until(lambda now: "a" in now and now.members[0].incarnation != view.members[0].incarnation, 20.0)
    eventually(lambda: "a" in [member.id for change in told for member in change.left])
    assert b.view.ids == ["a", "b"]
    assert a.wait(10.0).ids == ["a", "b"]


def test_a_member_that_somebody_deleted_joins_again(group, store):
    a = group("a")
    before = a.wait(10.0).members[0].incarnation
    store.delete("web/members/a")
    a.wait_until(lambda view: "a" in view and view.members[0].incarnation != before, 20.0)


def test_with_a_lost_session_of_the_callers_waiting_says_so(group, connect):
    store = connect()
    session = store.open_session(TTL_S)
    a = group("a", store=store, session=session)
    a.wait(10.0)
    session.mark_ended()
    with pytest.raises(SessionLost):
        a.wait_until(ids("nobody"), 10.0)


def test_an_id_that_a_live_member_has_is_refused(group, connect):
    group("a").wait(10.0)
    store = connect()
    session = store.open_session(1.0)
    with pytest.raises(NodeIdInUse, match=r"member 'a' of group 'web' is in use by pid \d+ on .*; use another ID"):
        group("a", store=store, session=session).wait(20.0)


def test_an_id_of_a_dead_member_is_waited_for(group, connect, store):
    dying = connect(session_ttl_s=TTL_S)
    stale = dying.open_session(TTL_S)
    store_entry = dying.put("web/members/a", b"{}", session=stale)
    assert store_entry.owner == stale.id
    a = group("a")
    time.sleep(0.1)
    stale.close()
    assert a.wait(10.0).ids == ["a"]


def test_a_burst_of_members_needs_fewer_views_than_members_or_as_many(group):
    members = [group(f"m{number}") for number in range(6)]
    view = members[0].wait_until(lambda view: len(view.members) == 6, 20.0)
    assert view.number <= 6


def test_a_view_that_another_wrote_meanwhile_is_not_overwritten(connect):
    store, other = connect(), connect()
    mine, theirs = ViewLog(store, "web", "web"), ViewLog(other, "web", "web")
    a = other.put("web/members/a", b"{}")
    b = other.put("web/members/b", b"{}")
    assert run(theirs.append(None, ViewState(), {"a": a})) is not None
    with pytest.raises(Conflict):
        run(mine.append(None, ViewState(), {"b": b}))
    entry, state = run(mine.load(other.get("web/views")))
    assert state.to_view().ids == ["a"]
    run(mine.append(entry, state, {"b": b}))
    assert run(theirs.load(other.get("web/views")))[1].to_view().ids == ["a", "b"]


def test_a_view_is_never_older_than_the_one_before_it(connect):
    store, other = connect(), connect()
    view_log = ViewLog(store, "web", "web")
    gone = other.put("web/members/a", b"{}")
    written = run(view_log.append(None, ViewState(), {"a": gone}))
    other.delete("web/members/a", version=gone.version)
    state = ViewState()
    state.apply_step(written[2])
    seen = replace(gone, version="older", token=gone.token - 1)  # as a watch that is behind has reported it
    assert run(view_log.append(written[0], state, {"a": seen}))[2].left == ["a"]


def test_a_view_does_not_bring_back_a_member_that_the_one_before_it_removed(connect):
    store, other = connect(), connect()
    view_log = ViewLog(store, "web", "web")
    gone, stays = other.put("web/members/a", b"{}"), other.put("web/members/b", b"{}")
    at, _head, step = run(view_log.append(None, state := ViewState(), {"a": gone, "b": stays}))
    state.apply_step(step)
    other.delete("web/members/a", version=gone.version)
    at, _head, step = run(view_log.append(at, state, {"a": None}))
    state.apply_step(step)
    assert run(view_log.append(at, state, {"a": gone})) is None  # as a watch that is behind has reported it


def test_a_member_that_was_written_after_the_last_view_is_not_read_again(connect, monkeypatch):
    store = connect()
    view_log, state = ViewLog(store, "web", "web"), ViewState()
    at, _head, step = run(view_log.append(None, state, {"a": store.put("web/members/a", b"{}")}))
    state.apply_step(step)
    monkeypatch.setattr(store, "get_many", None)
    assert list(run(view_log.append(at, state, {"b": store.put("web/members/b", b"{}")}))[2].written) == ["b"]


def test_a_writer_that_does_not_know_the_newest_view_yet_writes_none(group, connect, monkeypatch):
    with Group(connect(), "web", member_id="a") as earlier:
        earlier.wait(10.0)
    apply_head, append, known = ViewFollower._apply_head, ViewLog.append, []

    async def apply_late(follower, batch):
        await Pause(follower._store.clock, Signal(), 0.3)
        await apply_head(follower, batch)

    async def append_and_record(view_log, at, state, members):
        known.append(at)
        return await append(view_log, at, state, members)

    monkeypatch.setattr(ViewFollower, "_apply_head", apply_late)
    monkeypatch.setattr(ViewLog, "append", append_and_record)
    assert group("b").wait(10.0).ids == ["b"]
    assert None not in known


def test_who_is_behind_is_told_every_view_and_who_begins_gets_the_newest(connect, monkeypatch):
    monkeypatch.setattr(logs, "BASE_CHANGES", 10)
    monkeypatch.setattr(logs, "MAX_INLINE_BYTES", 0)  # each step is read
    store, told = connect(), []
    view_log, replica = ViewLog(store, "web", "web"), Replica(ViewLog(connect(), "web", "web"))
    replica.add_listener(told.extend)
    at, state = None, ViewState()
    for number in range(1, 40):
        member = store.put("web/members/a", b'{"weight": %d}' % number)
        before = at
        at, head, step = run(view_log.append(before, state, {"a": member}))
        run(view_log.remove_old_after(before, head))
        state.apply_step(step)
        if number == 30:
            run(replica.advance_to(at))
    run(replica.advance_to(at))
    assert [(change.view.number, change.view.members[0].weight, change.skipped) for change in told] == [
        (number, float(number), 0) for number in range(30, 40)
    ]
    assert run(view_log.load(at))[1].to_view() == told[-1].view
    assert len(store.children("web/log")) <= 25


def test_a_late_writer_that_dies_in_the_same_base_does_not_damage_it(connect, monkeypatch):
    monkeypatch.setattr(logs, "BASE_CHANGES", 0)
    monkeypatch.setattr(logs, "BASE_CHANGES_PER_MEMBER", 1)
    monkeypatch.setattr(logs, "_BASE_BYTES", 1)  # one member in each chunk
    store, other, state = connect(), connect(), ViewState()
    view_log = ViewLog(store, "web", "web")
    members = {name: store.put(f"web/members/{name}", b"{}") for name in "ab"}
    at, _, step = run(view_log.append(None, state, members))
    state.apply_step(step)
    late_state = ViewState(1, dict(reversed(step.written.items())))  # the same view, read in another way
    members["c"] = store.put("web/members/c", b"{}")
    newest, _, _ = run(view_log.append(at, state, members))
    put = other.put

    def put_first_chunk(key, value):
        if not key.endswith("-0000"):
            raise Unavailable("the writer dies here")
        return put(key, value)

    monkeypatch.setattr(other, "put", put_first_chunk)
    with pytest.raises(Unavailable):
        run(ViewLog(other, "web", "web").append(at, late_state, members))
    assert run(view_log.load(newest))[1].to_view().ids == ["a", "b", "c"]


def test_records_of_ended_logs_are_removed_and_those_of_a_newer_log_stay(connect):
    store = connect()
    view_log, member = ViewLog(store, "web", "web"), store.put("web/members/a", b"{}")
    heads = []
    for _ in range(2):
        store.delete("web/views")
        heads.append(run(view_log.append(None, ViewState(), {"a": member}))[1])
    assert len(store.children("web/log")) == 2
    run(view_log.remove_old_after(None, heads[0]))  # the writer of the first log is late
    assert [name.partition("-")[0] for name in store.children("web/log")] == [heads[1].log_id]


def test_who_is_further_behind_than_is_kept_is_told_what_was_skipped(connect, monkeypatch):
    monkeypatch.setattr(logs, "BASE_CHANGES", 10)
    store, told = connect(), []
    view_log, replica = ViewLog(store, "web", "web"), Replica(ViewLog(connect(), "web", "web"))
    replica.add_listener(told.extend)
    at, state = None, ViewState()
    for number in range(1, 60):
        member = store.put("web/members/a", b'{"weight": %d}' % number)
        before = at
        at, head, step = run(view_log.append(before, state, {"a": member}))
        run(view_log.remove_old_after(before, head))
        state.apply_step(step)
        if number == 1:
            run(replica.advance_to(at))
    run(replica.advance_to(at))
    assert [(change.view.number, change.skipped) for change in told] == [(1, 0), (59, 57)]


def test_what_is_no_log_of_views_is_refused(connect, group):
    connect().put("web/views", b'{"number": "many"}')
    with pytest.raises(LatchworkError, match=r"key 'web/views' does not contain views .*; use another name"):
        run(Replica(ViewLog(connect(), "web", "web")).advance_to(connect().get("web/views")))


def test_a_wait_ends_with_its_time_and_with_close(group, in_thread):
    a = group("a")
    a.wait(10.0)
    with pytest.raises(WaitTimeout, match=r"group 'web': the view waited for did not come; it is at \['a'\]"):
        a.wait_until(ids("nobody"), 0.1)
    waiting = in_thread(lambda: a.wait_until(ids("nobody")))
    time.sleep(0.1)
    a.close()
    with pytest.raises(Closed):
        waiting.outcome()
    with pytest.raises(Closed):
        a.start()


def test_waiting_in_a_listener_is_refused(group, eventually):
    a, caught = group("a"), []

    def listener(_change):
        try:
            a.wait_until(ids("nobody"))
        except LatchworkError as error:
            caught.append(str(error))

    a.on_view(listener)
    assert "must not be waited for in a callback" in eventually(lambda: caught)[0]


def test_closing_in_a_listener_does_not_hang(group, eventually):
    a = group("a")
    a.on_view(lambda _change: a.close())
    onlooker = group()
    eventually(lambda: a._leaving)
    eventually(lambda: onlooker.members() == [])


def test_bad_ids_and_attributes_are_refused_before_any_io(group):
    with pytest.raises(InvalidKey):
        Group(None, "web", member_id="a/b")
    with pytest.raises(ValueError, match="weight must be at least 0"):
        Group(None, "web", member_id="a", weight=-1.0)
    with pytest.raises(TypeError, match="must be text"):
        Group(None, "web", member_id="a", labels={"cores": 4})
    with pytest.raises(LatchworkError, match="only observed here"):
        group().update(weight=2.0)


def test_a_member_that_leaves_while_its_join_is_in_doubt_leaves_no_member_behind(connect, monkeypatch):
    store, looker = connect(), connect()
    group = Group(store, "web", member_id="a")
    commit, cuts = store.commit, []

    def closed_as_the_answer_is_lost(checks, ops):
        done = commit(checks, ops)
        if any(op.key == "web/members/a" for op in ops):
            cuts.append(done)
            group._leaving = True  # what closing does first
            raise OutcomeUnknown("cut")
        return done

    monkeypatch.setattr(store, "commit", closed_as_the_answer_is_lost)
    group.start()
    group._background.block()
    group.close()
    assert cuts
    assert store.session.remaining_s() > 0.0
    assert looker.list("web/members") == []


def test_a_member_that_leaves_does_not_remove_another_that_has_its_id_by_now(connect):
    store, elsewhere = connect(), connect()
    group = Group(store, "web", member_id="a")
    group.start()
    group.wait(30.0)
    elsewhere.delete("web/members/a")
    other = elsewhere.put("web/members/a", b"{}", session=elsewhere.session)
    group.close()
    assert elsewhere.get("web/members/a") == other


def test_first_view_after_a_deletion_has_members_that_were_read_before_it(
    group, store, connect, eventually, monkeypatch
):
    apply_head, heads, behind, other = ViewFollower._apply_head, [], [], connect()

    async def apply_and_record(follower, batch):
        await apply_head(follower, batch)
        heads.append(batch[-1].entry if batch else None)

    def read_members_later(follower):
        behind.append(follower)

    monkeypatch.setattr(ViewFollower, "_apply_head", apply_and_record)
    first = group("a", store=connect())
    first.wait(30.0)
    eventually(lambda: heads[-1] is not None)
    monkeypatch.setattr(ViewFollower, "_read_members_again", read_members_later)
    store.delete("web/views")
    eventually(lambda: behind)
    other.put("web/members/e", b"{}", session=other.session)
    view = first.wait_until(lambda view: "e" in view, 30.0)
    monkeypatch.undo()
    behind[0]._read_members_again()
    assert view.ids == ["a", "e"]


def test_views_go_on_after_their_log_was_deleted_before_the_watch_had_shown_it(
    group, store, connect, eventually, monkeypatch
):
    """A watch may merge the creation and the deletion of the log's head to no change."""
    apply_head, merged, is_merging = ViewFollower._apply_head, [], True

    async def apply_unless_merged(follower, batch):
        if batch and is_merging:
            merged.append(batch[-1].entry)
        else:
            await apply_head(follower, batch)

    monkeypatch.setattr(ViewFollower, "_apply_head", apply_unless_merged)
    first = group("a", store=connect())
    first.wait(30.0)
    assert eventually(lambda: merged)
    store.delete("web/views")
    eventually(lambda: merged[-1] is None)
    is_merging = False
    group("e", store=connect())
    assert first.wait_until(lambda view: "e" in view, 30.0).ids == ["a", "e"]


def test_views_that_somebody_deleted_are_begun_anew_and_told(group, store, connect, eventually):
    first, second, told = group("a", store=connect()), group("b", store=connect()), []
    for name in ("c", "d"):
        passing = group(name, store=connect())
        first.wait_until(lambda view, name=name: name in view, 30.0)
        passing.close()
        first.wait_until(lambda view, name=name: name not in view, 30.0)
    second.wait_until(lambda view: view.number == first.view.number and view.ids == ["a", "b"], 30.0)
    first.on_view(told.append)
    number = first.view.number
    store.delete("web/views")
    group("e", store=connect())
    for each in (first, second):
        assert each.wait_until(lambda view: view.ids == ["a", "b", "e"], 30.0).number < number
    eventually(lambda: told and told[-1].view.ids == ["a", "b", "e"])
    assert [member.id for change in told[1:] for member in change.joined] == ["e"]
    assert not any(change.left for change in told)


# Who nobody follows


def keys_of(store):
    return [entry.key for entry in store.list("web", recursive=True)]


def test_a_member_that_nobody_asks_writes_its_key_and_follows_nothing(group, store):
    a, b = group("a"), group("b")
    a.wait_joined(10.0)
    b.wait_joined(10.0)
    assert keys_of(store) == ["web/members/a", "web/members/b"]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("latchwork-views")]


def test_two_last_members_that_leave_at_once_leave_nobody(connect, group, store):
    members = [group(name, store=connect()) for name in "ab"]
    for each in members:
        each.wait_until(ids("a", "b"), 20.0)
    threads = [threading.Thread(target=each.close) for each in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert Group(store, "web").members() == []
    onlooker = group()
    assert onlooker.wait_until(lambda view: not view.members, 20.0).ids == []


def test_a_last_member_whose_store_was_closed_first_is_gone(connect, store):
    dying = connect(session_ttl_s=TTL_S)
    last = Group(dying, "web", member_id="a")
    last.start()
    last.wait(10.0)
    dying.close()
    assert Group(store, "web").members() == []
    last.close()


def test_members_of_one_process_share_one_place_among_the_followers(connect, group, store):
    shared = connect()
    members = [group(f"m{number}", store=shared) for number in range(5)]
    for each in members:
        each.wait_until(lambda view: len(view.members) == 5, 20.0)
    assert len(store.children("web/followers")) == 1


def test_a_member_in_a_view_that_nobody_wants_any_more_ends_following(connect, store, eventually):
    with Group(connect(), "web", member_id="a") as a:
        a.wait(10.0)
        assert len(store.children("web/followers")) == 1
    eventually(lambda: not store.children("web/followers"))


# What one member can do to the others


def test_what_is_too_large_is_refused_and_harms_nobody(group):
    a, b = group("a"), group("b")
    a.wait_until(ids("a", "b"), 10.0)
    with pytest.raises(ValueError, match=r"member 'a' of group 'web' takes 600,\d+ bytes .* at most 4,096 are kept"):
        a.update(labels={"x": "y" * 600_000})
    with pytest.raises(ValueError, match="at most 4,096"):
        Group(None, "web", member_id="c", address="z" * 5_000)
    b.update(weight=2.0)
    assert a.wait_until(lambda view: view.member("b").weight == 2.0, 10.0).member("a").labels == {}


@pytest.mark.parametrize(
    "value",
    [b"\xff\xfe", b"[" * 3_000, b'{"weight": 1' + b"0" * 400 + b"}", b"x" * 600_000, b'{"labels": 3, "pid": "z"}'],
)
def test_a_record_that_nobody_of_ours_wrote_counts_with_its_id_alone(value, store, group):
    store.put("web/members/stranger", value)
    a = group("a")
    assert a.wait_until(ids("a", "stranger"), 10.0).member("stranger").labels == {}
    assert [member.id for member in a.members()] == ["a", "stranger"]


def test_labels_are_text_or_bytes(group):
    a, b = group("a", labels={"zone": "x", "key": b"\x00\xff"}), group("b")
    view = b.wait_until(ids("a", "b"), 10.0)
    assert view.member("a").labels == {"zone": "x", "key": b"\x00\xff"}
    before = view.member("a")
    assert 0.0 < before.joined_at == before.updated_at
    time.sleep(0.01)
    a.update(labels={"zone": b""})
    after = b.wait_until(lambda view: view.member("a").labels == {"zone": b""}, 10.0).member("a")
    assert (after.joined_at, after.created, after.updated_at > before.updated_at) == (
        before.joined_at,
        before.created,
        True,
    )


def test_an_update_that_could_not_be_stored_is_not_stored_later(connect, group, monkeypatch):
    store, other = connect(), connect()
    a = group("a", store=store)
    a.wait(10.0)

    def unavailable(_checks, _ops):
        raise Unavailable("cut")

    with monkeypatch.context() as cut:
        cut.setattr(store, "commit", unavailable)
        with pytest.raises(Unavailable):
            a.update(weight=5.0)
    a.update(address="there")
    assert (Group(other, "web").members()[0].weight, Group(other, "web").members()[0].address) == (1.0, "there")


def test_an_update_whose_answer_was_lost_is_found_out(connect, group, monkeypatch):
    store = connect()
    a = group("a", store=store)
    a.wait(10.0)
    commit = store.commit

    def answer_is_lost(checks, ops):
        commit(checks, ops)
        raise OutcomeUnknown("cut")

    monkeypatch.setattr(store, "commit", answer_is_lost)
    a.update(weight=5.0)
    assert a.members()[0].weight == 5.0


# By age, to check, to evict, to list, to remove


def test_members_are_known_by_age(group, connect):
    for name in "cab":
        group(name, store=connect()).wait_joined(10.0)
    view = group().wait_until(lambda view: len(view.members) == 3, 10.0)
    assert [member.id for member in view.by_age] == ["c", "a", "b"]
    assert view.ids == ["a", "b", "c"]
    assert view.member("d") is None


def test_a_write_can_depend_on_a_member_being_there(group, store):
    a = group("a")
    a.wait_joined(10.0)
    store.commit([a.check("a")], [Put("x", b"1")])
    a.close()
    with pytest.raises(Conflict):
        store.commit([a.check("a")], [Put("x", b"2")])


def test_joining_depends_on_checks_of_the_callers(group, store):
    store.put("open", b"")
    group("a", checks=[Exists("open")]).wait_joined(10.0)
    store.delete("open")
    late = group("b", checks=[Exists("open")])
    with pytest.raises(Conflict, match="'open'"):
        late.wait_joined(10.0)
    assert [member.id for member in late.members()] == ["a"]


def test_a_member_that_was_evicted_is_told_and_stays_out_until_it_is_made_anew(group, connect):
    a, b = group("a", store=connect()), group("b", store=connect())
    b.wait_until(ids("a", "b"), 10.0)
    assert b.evict("a", "it lags")
    b.wait_until(ids("b"), 10.0)
    with pytest.raises(MemberEvicted, match="member 'a' of group 'web' was evicted: it lags"):
        a.wait_until(lambda view: view.number < 0, 20.0)
    assert not b.evict("a")
    a.close()
    group("a", store=connect()).wait(10.0)
    b.wait_until(ids("a", "b"), 10.0)


def test_an_id_that_is_taken_is_refused_at_once_if_the_caller_does_not_wait(group, connect):
    group("a").wait_joined(10.0)
    started = time.monotonic()
    with pytest.raises(NodeIdInUse, match=r"in use by pid \d+ on"):
        group("a", store=connect(session_ttl_s=30.0), id_wait_s=0.0).wait_joined(20.0)
    assert time.monotonic() - started < 10.0


def test_groups_are_listed_and_removed_when_they_are_empty(group, store):
    a = group("a", "tenants/web")
    group("b", "tenants/db").wait_joined(10.0)
    a.wait(10.0)
    store.put("tenants/other/key", b"")
    assert list_groups(store, "tenants") == ["tenants/db", "tenants/web"]
    with pytest.raises(Conflict, match="has members"):
        Group(store, "tenants/web").remove()
    a.close()
    Group(store, "tenants/web").remove()
    assert list_groups(store, "tenants") == ["tenants/db"]
    assert not store.list("tenants/web", recursive=True)


def test_a_view_can_be_waited_for_that_is_as_new_as_the_members(group, connect):
    onlooker = group()
    for number in range(5):
        with group(f"m{number}", store=connect()) as member:
            member.wait_joined(10.0)
            assert onlooker.sync(20.0).ids == [f"m{number}"]
    assert onlooker.sync(20.0).ids == []


def test_a_close_does_not_wait_for_views_that_come_after_another_close(group):
    """Two threads close: the one that ends first closes the threads in which listeners are called."""
    mine, said = group("n1"), []
    mine.wait(45.0)
    mine.on_view(said.append)
    mine.close()
    count = len(said)
    mine._apply_changes([ViewChange(mine.view, (), (), ())])
    begun = time.monotonic()
    mine.close()
    assert time.monotonic() - begun < 3.0
    assert len(said) == count


def test_no_mutex_is_held_while_a_thread_is_started_for_a_view(connect, eventually):
    """The thread of an event loop may need the mutex, and whoever starts a thread waits until it runs."""
    told = []
    with Group(connect(), "g", member_id="a") as group:
        signal_lane = group._announcer._serial_drain.signal

        def signal_without_mutex():
            with group._changed.mutex:  # refuses a thread that has it
                pass
            signal_lane()

        group._announcer._serial_drain.signal = signal_without_mutex
        group.on_view(told.append)
        assert eventually(lambda: told)
        group.on_view(told.append)
        assert eventually(lambda: len(told) > 1)


def test_groups_are_listed_at_any_depth(store):
    store.put("views", b"no head")
    store.put("a/members/plain", b"no session has it")
    with Group(store, "web", member_id="n1") as web, Group(store, "a/b/c/db", member_id="n1") as db:
        web.wait(10.0)
        db.wait(10.0)
        assert list_groups(store) == ["a/b/c/db", "web"]
        assert list_groups(store, "a/b") == ["a/b/c/db"]


@pytest.mark.threads
def test_a_store_keeps_nothing_in_memory_of_groups_that_it_no_longer_uses(store):
    def use(number):
        with Group(store, f"g{number}", member_id="n1") as group:
            group.wait(10.0)

    use(0)
    shared = len(store._core._shared)
    for number in range(1, 6):
        use(number)
    gc.collect()
    assert len(store._core._shared) == shared
    assert not [views for views in gc.get_objects() if type(views) is SharedViews and views._store._core is store._core]
