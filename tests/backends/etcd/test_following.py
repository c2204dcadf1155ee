"""Watches go on at the very next revision, and sessions count from the send; on a server where nobody else writes."""

from __future__ import annotations

import time

import pytest

from latchwork.backends.base import Current, Snapshot
from latchwork.clock import SYSTEM_CLOCK
from latchwork_testkit.servers import EtcdServer


@pytest.fixture(scope="module")
def server():
    """Of its own: each revision of it is written by a test. One version will do: nothing of this is the server's."""
    with EtcdServer("3.5") as quiet:
        yield quiet


@pytest.fixture
def behind(server, proxied, root, opened):
    """A backend behind a proxy, and the proxy."""
    proxy = proxied(server)
    return opened(f"etcd://{proxy.endpoint}/{root}"), proxy


def test_the_first_write_after_the_first_state_is_told(server, root, opened, collector, raw):
    seen = collector()
    opened(server.url(root)).watch("w", seen)
    seen.wait_until(lambda it: it.events)
    raw.put(f"/{root}/w/next".encode(), b"1")
    seen.wait_until(lambda it: it.values() == {"w/next": b"1"})


def test_the_first_write_after_a_disconnect_is_told(behind, root, collector, raw):
    backend, proxy = behind
    seen = collector()
    backend.watch("w", seen)
    seen.wait_until(lambda it: any(isinstance(event, Current) for event in it.events))
    raw.put(f"/{root}/w/last".encode(), b"1")
    seen.wait_until(lambda it: "w/last" in it.values())
    proxy.refuse(new_only=True)
    proxy.cut_clients()
    raw.put(f"/{root}/w/next".encode(), b"2")
    proxy.accept()
    seen.wait_until(lambda it: it.values() == {"w/last": b"1", "w/next": b"2"})
    assert sum(isinstance(event, Snapshot) for event in seen.events) == 1, "it resumed by revision"


def test_opening_and_renewals_count_from_before_they_were_sent(behind):
    backend, proxy = behind
    proxy.hold("answers", open_only=True)
    began = SYSTEM_CLOCK.now()
    opening = backend.open_session(30.0, lambda: None)
    opening_asked = SYSTEM_CLOCK.now()
    time.sleep(0.2)
    proxy.release()
    session = opening.result(6)
    assert began <= session.opened_at <= opening_asked
    proxy.hold("answers", open_only=True)
    renewal = session.renew()
    renewal_asked = SYSTEM_CLOCK.now()
    time.sleep(0.2)
    proxy.release()
    assert opening_asked <= renewal.result(6) <= renewal_asked
