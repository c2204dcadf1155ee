"""The judge finds nothing in a clean record, and finds each violation that is planted into it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from latchwork_testkit.histories.calls import OK, REFUSED, UNKNOWN
from trials.judges.contract.facts import Call, Mark, Record, Seen, Settled, Stored
from trials.judges.contract.rules import judge

TTL_S, CALL_S = 2.0, 2.0


def call(kind, key, value, began, token, *, client="a", outcome=OK, session="", took_s=0.1):
    return Call(client, kind, (key,), began, value, session, began + took_s, outcome, token)


@pytest.fixture
def record():
    """Two clients, a fault between 2 and 3, a session lost in it, one unknown write that was settled as absent."""
    clean = Record(CALL_S, TTL_S, began=1.0, reachable={"a": 3.0, "b": 3.0})
    clean.calls = [
        call("create", "log/a-1", "a:1", 1.0, 1),
        call("put", "reg/0", "a:2", 1.2, 2),
        call("create", "log/a-3", "a:3", 2.0, 0, outcome=UNKNOWN),
        call("put", "reg/0", "a:4", 2.1, 0, outcome=REFUSED),
        call("get", "reg/0", "", 3.0, 2, client="b"),
        call("put", "reg/0", "b:1", 3.2, 5, client="b"),
        call("bind", "alive/a", "a:5:s2", 3.3, 6, session="s2"),
        call("tmp", "settle/a", "a:6", 3.4, 7),
    ]
    clean.marks = [
        Mark("a", "s1", "opened", 1.0),
        Mark("a", "s1", "state:active", 1.0),
        Mark("a", "s1", "lost", 2.5),
        Mark("a", "s1", "heard", 2.5),
        Mark("a", "s1", "state:lost", 2.51),
        Mark("a", "s2", "opened", 3.1),
    ]
    for client in ("a", "b"):
        clean.seen += [
            Seen(client, 1.1, "log/a-1", "a:1", 1),
            Seen(client, 1.3, "reg/0", "a:2", 2),
            Seen(client, 1.3, "alive/a", "a:0:s1", 3, "s1"),
            Seen(client, 2.7, "alive/a", None),
            Seen(client, 3.3, "reg/0", "b:1", 5),
            Seen(client, 3.4, "alive/a", "a:5:s2", 6, "s2"),
            Seen(client, 3.5, "settle/a", "a:6", 7),
        ]
    clean.settled = [Settled("a", "log/a-3", "a:3", 7, present=False)]
    clean.state = [
        Stored("alive/a", "a:5:s2", 6, "s2"),
        Stored("log/a-1", "a:1", 1, None),
        Stored("reg/0", "b:1", 5, None),
        Stored("settle/a", "a:6", 7, None),
    ]
    clean.mirrors = {client: {stored.key: stored.value for stored in clean.state} for client in ("a", "b")}
    return clean


def everywhere(record, stored, at=3.6):
    """Something more on the server, which everybody has seen."""
    record.state = [one for one in record.state if one.key != stored.key] + [stored]
    for client, mirror in record.mirrors.items():
        mirror[stored.key] = stored.value
        record.seen.append(Seen(client, at, stored.key, stored.value, stored.token, stored.owner))


def edit(facts, old, **changes):
    facts[facts.index(old)] = replace(old, **changes)


def only(record, words):
    found = judge(record)
    assert found, "the judge found nothing"
    assert all(words in sentence for sentence in found), found


def test_clean_record_passes(record):
    assert judge(record) == []


def test_call_that_never_returned_is_found(record):
    record.calls.append(Call("b", "get", ("reg/0",), 2.0))
    only(record, "never returned")


def test_call_that_took_too_long_is_found(record):
    record.calls.append(call("get", "reg/0", "", 2.0, 9, took_s=CALL_S + 2))
    only(record, "took 4.00 s")


def test_call_that_took_half_a_second_longer_than_it_may_is_found_on_a_machine_that_is_not_busy(record):
    record.calls.append(call("list", "reg", "", 2.0, 9, took_s=CALL_S + 0.6))
    only(record, "list 'reg' of a took 2.60 s")


def test_mirror_that_differs_is_found(record):
    record.mirrors["b"]["reg/0"] = "a:2"
    only(record, "the mirror of b has 'a:2'")


def test_mirror_that_kept_a_deleted_key_is_found(record):
    record.mirrors["a"]["log/gone"] = "a:9"
    only(record, "the mirror of a has 'a:9'")


def test_watch_that_missed_a_change_is_found(record):
    record.seen.remove(Seen("b", 1.1, "log/a-1", "a:1", 1))
    found = judge(record)
    assert any("the watch of b never reported 'log/a-1'" in sentence for sentence in found)


def test_watch_that_missed_a_deletion_is_found(record):
    record.seen.append(Seen("b", 3.6, "tmp/a", "a:7", 8))
    only(record, "the watch of b left 'tmp/a' at 'a:7'")


def test_watch_that_went_backwards_is_found(record):
    record.seen.insert(0, Seen("a", 1.0, "reg/0", "x", 4))
    only(record, "reported 'reg/0' at token 2 after 4")


def test_change_reported_twice_is_found(record):
    record.seen.append(Seen("a", 3.6, "settle/a", "a:6", 7))
    only(record, "reported 'settle/a' at token 7 after 7")


def test_session_active_again_after_it_was_lost_is_found(record):
    record.marks.append(Mark("a", "s1", "state:active", 3.0))
    only(record, "active after it had been lost")


def test_loss_told_twice_is_found(record):
    record.marks.append(Mark("a", "s1", "heard", 3.0))
    only(record, "told 2 times")


def test_write_that_succeeds_for_a_lost_session_is_found(record):
    record.calls.append(call("bind", "alive/a", "a:8:s1", 2.6, 4, session="s1"))
    only(record, "after session s1 had been lost")


def test_write_of_an_old_session_in_a_new_one_is_found(record):
    everywhere(record, Stored("alive/a", "a:8:s1", 8, "s2"))
    only(record, "asked of session s1, was bound to s2")


def test_keys_seen_to_vanish_before_the_owner_knew_are_found(record):
    edit(record.seen, Seen("b", 2.7, "alive/a", None), at=2.3)
    only(record, "vanish 0.200 s before a knew")


def test_keys_that_vanish_without_any_loss_are_found(record):
    record.marks = [mark for mark in record.marks if mark.session != "s1" or mark.what == "opened"]
    only(record, "never lost session s1")


def test_keys_of_a_frozen_or_revoked_client_may_vanish_first(record):
    edit(record.seen, Seen("b", 2.7, "alive/a", None), at=2.3)
    record.exempt.add("a")
    assert judge(record) == []


def test_key_left_of_a_lost_session_is_found(record):
    everywhere(record, Stored("more", "a:0:s1", 8, "s1"))
    only(record, "still bound to s1")


def test_confirmed_write_that_is_not_there_is_found(record):
    record.state = [stored for stored in record.state if stored.key != "log/a-1"]
    assert any("was confirmed, and is not there" in sentence for sentence in judge(record))


def test_refused_write_that_was_applied_is_found(record):
    record.seen.append(Seen("b", 2.2, "reg/1", "a:4", 4))
    assert any("was refused" in sentence and "was applied" in sentence for sentence in judge(record))


def test_unknown_write_that_nobody_settled_is_found(record):
    record.settled.clear()
    only(record, "could not be settled")


def test_write_that_lands_after_it_was_settled_as_absent_is_found(record):
    everywhere(record, Stored("log/a-3", "a:3", 9, None))
    found = judge(record)
    assert any("settled as absent, and is not so" in sentence for sentence in found)
    assert any("landed at token 9, after it had been settled at 7" in sentence for sentence in found)


def test_lost_update_is_found(record):
    record.calls.append(call("put", "reg/0", "b:9", 3.5, 9, client="b"))
    only(record, "'reg/0' lost put 'b:9' of b")


def test_torn_commit_is_found(record):
    everywhere(record, Stored("pair/x", "b:7", 8, None))
    everywhere(record, Stored("pair/y", "b:8", 9, None))
    only(record, "a commit was torn")


def test_stale_read_is_found(record):
    record.calls.append(call("get", "reg/0", "", 3.5, 2, client="a"))
    only(record, "gave token 2, after 5 had been confirmed")


def test_slow_reconnection_is_found(record):
    record.reachable["b"] = 1.9
    only(record, "b wrote again 1.40 s after")


def test_client_that_never_came_back_is_found(record):
    record.reachable["b"] = 4.0
    found = judge(record)
    assert any("b never wrote again" in sentence for sentence in found)
    assert any("b never saw anything new again" in sentence for sentence in found)


def test_problem_that_a_fault_found_itself_is_told(record):
    record.problems.append("the child hung")
    assert judge(record) == ["the child hung"]


def test_key_of_a_session_that_was_lost_after_the_store_had_been_read_is_none_left_behind(record):
    owner = next(stored.owner for stored in record.state if stored.owner)
    record.marks.append(Mark("a", owner, "lost", 9.0))
    assert any("is still bound to" in sentence for sentence in judge(record))
    record.read_at = 8.9
    assert not any("is still bound to" in sentence for sentence in judge(record))
