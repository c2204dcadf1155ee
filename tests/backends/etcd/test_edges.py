"""A full server, lost answers to leases, silent members, late turns: what is said is what happened, and in time."""

from __future__ import annotations

import time

import pytest

from latchwork.errors import LatchworkError, OutcomeUnknown, QuotaExceeded
from latchwork.types import Create, Put
from latchwork_testkit.servers import EtcdServer


@pytest.fixture
def proxy(server, proxied):
    return proxied(server)


@pytest.fixture
def cut_off(proxy, root, opened):
    backend = opened(f"etcd://{proxy.endpoint}/{root}?call_timeout_s=5")
    backend.commit([], [Put("warm", b"up")]).result(5)
    return backend


def test_a_write_that_a_full_server_refuses_is_not_there_and_one_that_is_there_is_not_refused(root, opened):
    """etcd answers "database space exceeded" also to writes that it has just applied."""
    with EtcdServer("3.5", extra_args=["--quota-backend-bytes=20000000"]) as small:
        backend = opened(small.url(root))
        backend.commit([], [Put("warm", b"up")]).result(5)
        refused = done = 0
        for round_number in range(6):
            sent = {
                f"c{round_number}-{number}": backend.commit([], [Create(f"c{round_number}-{number}", b"x" * 900_000)])
                for number in range(24)
            }
            for key, future in sent.items():
                error = future.exception(15)
                found = backend.get(key, stale_ok=False).result(15)
                if error is None:
                    done += 1
                    assert found is not None
                elif isinstance(error, QuotaExceeded):
                    refused += 1
                    assert found is None, f"{key} was reported as refused, and is there"
                else:
                    assert isinstance(error, OutcomeUnknown)
            if refused:
                break
        else:
            refused += isinstance(backend.commit([], [Put("one-more", b"x")]).exception(15), QuotaExceeded)
    assert done
    assert refused


def test_a_session_opens_although_the_answer_to_its_lease_was_lost(proxy, cut_off):
    proxy.hold("answers", open_only=True)
    began = time.monotonic()
    opening = cut_off.open_session(30.0, lambda: None)
    time.sleep(0.3)
    proxy.cut_clients()
    session = opening.result(6)
    assert session.ttl_s >= 30.0
    assert time.monotonic() - began < 5.0
    written = cut_off.commit([], [Put("bound", b"", session)]).result(5)
    assert written.entries[0].owner == session.id


def test_a_renewal_that_a_silent_member_does_not_answer_leaves_time_for_another(proxy, cut_off):
    session = cut_off.open_session(4.0, lambda: None).result(5)
    proxy.hold("requests", open_only=True)
    began = time.monotonic()
    assert isinstance(session.renew().exception(5), LatchworkError)
    assert time.monotonic() - began < session.ttl_s / 3
    proxy.release()


def test_numbered_keys_that_wait_for_their_turn_end_within_the_call_timeout(proxy, cut_off):
    cut_off.create_sequential("q/t", b"", None).result(5)
    proxy.hold("requests", open_only=True)
    proxy.refuse(new_only=True)
    began = time.monotonic()
    futures = [cut_off.create_sequential("q/t", b"", None) for _ in range(3)]
    for future in futures:
        assert future.exception(9) is not None
    assert time.monotonic() - began < 6.5, "one timeout for the whole call, not one for each turn"
    proxy.accept()
    proxy.release()


def test_numbers_end_with_an_error_before_one_would_sort_before_others(backend, raw, root):
    backend.create_sequential("q/t-", b"", None).result(5)
    raw.put(b"/%s/@q/q" % root.encode(), b"9999999998")
    assert backend.create_sequential("q/t-", b"", None).result(5).key == "q/t-9999999999"
    for _ in range(2):
        with pytest.raises(QuotaExceeded, match="keys next to 'q/t-' have been used; use another parent"):
            backend.create_sequential("q/t-", b"", None).result(5)
    assert backend.create_sequential("other/t-", b"", None).result(5).key == "other/t-0000000001"
