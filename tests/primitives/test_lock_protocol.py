"""The pure decisions of the persistent lock, one fact each."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchwork.primitives.leased.protocol import (
    FREE,
    TAKEOVER_FACTOR,
    LockIsHeld,
    LockRecord,
    LockWrite,
    ObservedOwner,
    OwnerObservations,
    OwnerRecord,
    plan_write,
    session_grace_s,
)
from latchwork.store.lease import Lease
from latchwork.types import Absent, At, Delete, Entry, Exists, Put

L, O_ME, O_OLD = "locks/it", "owners/me", "owners/old"
MINE = LockRecord("me", "n").to_bytes()


def lock(value, version=7):
    return Entry(L, value, version, version, 1)


def planned(entry, *, seen=None, now=0.0, me=O_ME, owner_key=O_OLD):
    return plan_write(L, entry, MINE, own_key=me, owner_key=owner_key, seen=seen, now=now)


def test_an_absent_lock_is_taken_if_it_is_still_absent_and_we_live():
    assert planned(None) == LockWrite((Absent(L), Exists(O_ME)), (Put(L, MINE),))


def test_a_free_lock_is_taken_if_it_is_unchanged_and_we_live():
    entry = lock(FREE)
    assert planned(entry) == LockWrite((At(entry), Exists(O_ME)), (Put(L, MINE),))


def test_a_lock_whose_owner_is_gone_is_taken_at_once_if_it_stays_gone():
    entry = lock(LockRecord("old", "x").to_bytes())
    assert planned(entry) == LockWrite((At(entry), Absent(O_OLD), Exists(O_ME)), (Put(L, MINE),))


def test_a_lock_of_a_living_owner_is_held_until_the_owner_must_have_stopped():
    entry = lock(LockRecord("old", "x").to_bytes())
    assert planned(entry, seen=ObservedOwner(3, 2.0, since=10.0), now=12.0) == LockIsHeld(
        "old", 10.0 + 2.0 * TAKEOVER_FACTOR
    )


def test_a_takeover_checks_the_very_owner_that_was_seen_unchanged_and_removes_it():
    entry = lock(LockRecord("old", "x").to_bytes())
    take = planned(entry, seen=ObservedOwner(3, 2.0, since=10.0), now=10.0 + 2.0 * TAKEOVER_FACTOR)
    assert take == LockWrite(
        (At(entry), At.of(O_OLD, 3), Exists(O_ME)), (Put(L, MINE), Delete(O_OLD)), removes_owner="old"
    )


def test_a_lock_is_taken_a_grace_after_its_owner_was_seen_without_its_sign_if_it_still_is():
    entry, seen = lock(LockRecord("old", "x").to_bytes()), ObservedOwner(3, 2.0, 10.0, "s", missing_since=10.2)
    over_at = 10.2 + session_grace_s(2.0)
    assert planned(entry, seen=seen, now=over_at - 0.01) == LockIsHeld("old", over_at)
    take = planned(entry, seen=seen, now=over_at)
    checks = (At(entry), At.of(O_OLD, 3), Absent("owners/alive/old"), Exists(O_ME))
    assert take == LockWrite(checks, (Put(L, MINE), Delete(O_OLD)), removes_owner="old")


def test_an_owner_with_a_sign_counts_as_alive_however_long_its_record_is_unchanged():
    entry, seen = lock(LockRecord("old", "x").to_bytes()), ObservedOwner(3, 2.0, 10.0, "s")
    assert planned(entry, seen=seen, now=1e6) == LockIsHeld("old", math.inf)


def test_the_grace_counts_from_the_first_response_without_the_sign_and_anew_with_each_version():
    seen = OwnerObservations()
    seen.observe_owner("o", 1, 2.0, 10.0, session="s")
    assert seen.find("o").missing_since == 10.0
    seen.observe_missing_liveness_key("o", 11.0)
    assert seen.find("o").missing_since == 10.0
    seen.observe_liveness_key("o")
    assert seen.find("o").missing_since is None
    seen.observe_missing_liveness_key("o", 12.0)
    seen.observe_owner("o", 2, 2.0, 12.5, session="s")
    assert seen.find("o").missing_since == 12.5
    seen.observe_owner("o", 3, 2.0, 13.0)
    assert seen.find("o").missing_since is None, "it goes on without a session"
    seen.observe_missing_liveness_key("o", 14.0)
    assert seen.find("o").missing_since is None


def test_a_lock_that_names_us_and_that_we_do_not_hold_is_written_anew():
    entry = lock(LockRecord("me", "lost answer").to_bytes())
    assert planned(entry, owner_key=O_ME) == LockWrite((At(entry), Exists(O_ME)), (Put(L, MINE),))


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{}", b'{"owner": 3}', b'{"owner": ""}'])
def test_a_key_that_is_no_lock_is_never_touched(value):
    assert planned(lock(value)) == LockIsHeld("")


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{}", b'{"ttl_s": 0, "label": "", "host": "", "pid": 1}'])
def test_a_key_that_is_no_owner_decodes_to_none(value):
    assert OwnerRecord.decode(value) is None


def test_records_survive_a_round_trip():
    for owner in (OwnerRecord(2.5, "node-1", "host", 42), OwnerRecord(2.5, "n1", "h", 4, "5e55")):
        assert OwnerRecord.decode(owner.to_bytes()) == owner
    assert LockRecord.decode(LockRecord("o", "n").to_bytes()) == LockRecord("o", "n")
    assert LockRecord.decode(FREE) == LockRecord(None)


def test_a_lease_counts_from_the_send_of_its_last_confirmed_renewal():
    lease = Lease(0.0, 3.0)
    lease.record_renewal_sent(1.0)
    assert lease.record_confirmation(1.0, 2.9)
    assert lease.expires_at == 4.0


def test_a_renewal_that_is_not_confirmed_extends_nothing():
    lease = Lease(0.0, 3.0)
    lease.record_renewal_sent(1.0)
    assert lease.expires_at == 3.0


def test_a_lease_that_has_run_out_stays_so():
    lease = Lease(0.0, 3.0)
    lease.record_renewal_sent(2.9)
    assert not lease.record_confirmation(2.9, 3.0)
    assert lease.has_ended(3.0)


def test_a_renewal_without_an_answer_is_sent_again_sooner_than_a_confirmed_one():
    lease = Lease(0.0, 2.4)
    assert lease.next_renewal_at() == pytest.approx(0.8)
    lease.record_renewal_sent(0.8)
    assert lease.next_renewal_at() == pytest.approx(1.1)
    lease.record_confirmation(0.8, 0.9)
    assert lease.next_renewal_at() == pytest.approx(1.6)


def test_a_lease_is_renewed_as_often_as_a_shorter_one_would_be_when_asked_to():
    lease = Lease(0.0, 6.0)
    assert lease.next_renewal_at(3.0) == pytest.approx(1.0)
    assert lease.next_renewal_at(60.0) == lease.next_renewal_at() == pytest.approx(2.0)


@given(st.lists(st.tuples(st.sampled_from(["send", "confirm"]), st.floats(0, 0.5), st.floats(0, 4))))
def test_a_lease_never_outlives_the_last_send_by_more_than_its_ttl(steps):
    lease, now, sends = Lease(0.0, 1.0), 0.0, [0.0]
    for what, wait_s, late_s in steps:
        now += wait_s
        if what == "send":
            lease.record_renewal_sent(now)
            sends.append(now)
        else:
            over = lease.has_ended(now)
            assert lease.record_confirmation(max(s for s in sends if s <= max(0.0, now - late_s)), now) != over
        assert lease.expires_at <= max(sends) + 1.0


def test_a_sighting_counts_from_the_first_response_that_showed_this_version():
    sightings = OwnerObservations()
    assert sightings.observe_owner("old", 1, 1.0, now=5.0)
    assert not sightings.observe_owner("old", 1, 1.0, now=6.0)
    assert sightings.find("old") == ObservedOwner(1, 1.0, 5.0)
    assert sightings.observe_owner("old", 2, 1.0, now=7.0)
    assert sightings.find("old") == ObservedOwner(2, 1.0, 7.0)


def test_an_owner_that_is_gone_is_forgotten():
    sightings = OwnerObservations()
    sightings.observe_owner("old", 1, 1.0, now=5.0)
    sightings.observe_removal("old")
    assert sightings.find("old") is None


def test_owners_that_have_been_dead_for_a_ttl_are_found():
    sightings = OwnerObservations()
    sightings.observe_owner("silent", 1, 1.0, now=0.0)
    sightings.observe_owner("no liveness key", 1, 1.0, now=0.5, session="s")
    sightings.observe_owner("renewed", 1, 10.0, now=0.0)
    sightings.observe_liveness_key("alive")
    sightings.observe_owner("alive", 1, 1.0, now=0.0, session="s")
    assert [owner for owner, _ in sightings.find_owners_dead_for_ttl(now=1.9)] == ["no liveness key"]
    assert [owner for owner, _ in sightings.find_owners_dead_for_ttl(now=3.0)] == ["silent", "no liveness key"]


@pytest.mark.parametrize(("ttl_s", "expected_s"), [(0.5, 0.3), (10.0, 0.5), (60.0, 1.0)])
def test_the_grace_after_a_session_is_a_twentieth_of_the_ttl_within_bounds(ttl_s, expected_s):
    assert session_grace_s(ttl_s) == pytest.approx(expected_s)


def test_an_liveness_key_counts_as_missing_from_the_first_response_without_it_until_one_shows_it():
    sightings = OwnerObservations()
    sightings.observe_owner("o", 1, 10.0, now=5.0, session="s")
    assert sightings.find("o") == ObservedOwner(1, 10.0, 5.0, "s", missing_since=5.0)
    sightings.observe_missing_liveness_key("o", 6.0)
    assert sightings.find("o").dead_at == 5.0 + session_grace_s(10.0)
    sightings.observe_liveness_key("o")
    assert sightings.find("o") == ObservedOwner(1, 10.0, 5.0, "s")
    assert sightings.find("o").dead_at == math.inf
    sightings.observe_owner("o", 2, 10.0, now=7.0, session="s")
    assert sightings.find("o").missing_since is None
    sightings.observe_missing_liveness_key("o", 8.0)
    assert sightings.find("o") == ObservedOwner(2, 10.0, 7.0, "s", missing_since=8.0)


def test_an_owner_without_a_session_needs_no_sign_and_one_that_is_gone_has_none():
    sightings = OwnerObservations()
    sightings.observe_missing_liveness_key("never seen", 4.0)
    sightings.observe_owner("o", 1, 10.0, now=5.0)
    sightings.observe_missing_liveness_key("o", 6.0)
    assert sightings.find("o") == ObservedOwner(1, 10.0, 5.0)
    sightings.observe_liveness_key("p")
    sightings.observe_removal("p")
    sightings.observe_removal("p")
    sightings.observe_owner("p", 1, 10.0, now=5.0, session="s")
    assert sightings.find("p").missing_since == 5.0


def test_a_lock_is_looked_at_without_an_owner_of_ours():
    assert planned(None, me=None) == LockWrite((Absent(L),), (Put(L, MINE),))
