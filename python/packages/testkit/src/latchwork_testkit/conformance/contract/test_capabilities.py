"""The declared capabilities of a backend are true, and every limit is at least that of the contract."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time

import pytest

import latchwork
from latchwork.spi import find_spec

#: Seconds that a change may need to reach a watch, in addition to the polling interval, on a busy machine.
DELIVERY_S = 0.25

WRITE = """
import sys, latchwork
with latchwork.connect(sys.argv[1]) as store:
    store.put("from-another-process", b"v")
"""


def test_the_spec_of_the_scheme_declares_the_capabilities_without_a_connection(store):
    declared = find_spec(store.url.partition("://")[0]).capabilities
    assert declared.name == store.capabilities.name


def test_the_limits_of_a_transaction_are_at_least_those_of_the_contract(store):
    allowed = store.capabilities
    assert allowed.max_txn_checks >= 100
    assert allowed.max_txn_ops >= 100
    assert allowed.max_txn_bytes >= 1_000_000


def test_a_ttl_below_the_least_one_is_raised_to_it_and_never_lowered(store):
    least = store.open_session(0.01)
    assert 0.01 <= least.ttl_s <= store.capabilities.min_ttl_s
    time.sleep(min(least.ttl_s, 1.0))
    assert store.put("bound", b"v", session=least).owner == least.id
    usual = max(10.0, store.capabilities.min_ttl_s)
    assert store.open_session(usual).ttl_s >= min(usual, store.capabilities.max_ttl_s)


def test_changes_reach_the_watch_of_another_store_within_the_polling_interval(store, other):
    delays = []
    changed = threading.Event()
    sent_at = 0.0

    def receive(batch):
        if batch:
            delays.append(time.monotonic() - sent_at)
            changed.set()

    with store.watch("watched") as watch:
        watch.next(10)
        watch.subscribe(receive)
        for number in range(10):
            time.sleep(0.15)  # a backend that polls more often after a change is idle again
            changed.clear()
            sent_at = time.monotonic()
            other.put("watched/key", b"%d" % number)
            assert changed.wait(10)
    assert statistics.median(delays) <= store.capabilities.poll_interval_s + DELIVERY_S


def test_another_process_shares_the_data(backend_url, store):
    if not store.capabilities.multi_process:
        pytest.skip("multi_process=False: each process has its own data")
    subprocess.run([sys.executable, "-c", WRITE, backend_url], check=True, timeout=60)
    assert store.get("from-another-process").value == b"v"


def test_acknowledged_writes_are_there_after_every_store_was_closed(backend_url):
    with latchwork.connect(backend_url) as first:
        if first.capabilities.survives == "nothing":
            pytest.skip("survives='nothing': the data ends with the process")
        first.put("kept", b"v")
    with latchwork.connect(backend_url) as second:
        assert second.get("kept").value == b"v"
