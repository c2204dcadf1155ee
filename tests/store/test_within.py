"""A store for work under an ownership: no call waits longer than that lasts, on servers that hang."""

from __future__ import annotations

import sqlite3
import threading

import pytest

import latchwork
from backends_table import BY_NAME, SERVERS
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import LockLost, NotLeader, OutcomeUnknown, Unavailable

CALL_TIMEOUT_S = 30.0
#: Far less than the call timeout, far more than any of these calls may take.
SOON_S = 15.0


class Countdown:
    """An ownership that lasts so long from now."""

    def __init__(self, seconds):
        self.until = SYSTEM_CLOCK.now() + seconds

    def __call__(self):
        return max(0.0, self.until - SYSTEM_CLOCK.now())


@pytest.fixture(params=SERVERS)
def hanging(request):
    """A store whose server hangs, with a key that was written before; ``release`` ends that."""
    launched = BY_NAME[request.param].launch()
    with launched as server, latchwork.connect(server.url("within", call_timeout_s=CALL_TIMEOUT_S)) as store:
        store.put("key", b"before")
        server.pause()
        try:
            yield store, server
        finally:
            server.resume()


@pytest.fixture
def memory():
    with latchwork.connect("memory://within") as store:
        yield store


def raised_soon(error, call):
    began = SYSTEM_CLOCK.now()
    with pytest.raises(error) as caught:
        call()
    assert SYSTEM_CLOCK.now() - began < SOON_S, "it waited longer than the ownership lasted"
    return caught.value


def test_calls_to_a_server_that_hangs_end_with_the_ownership(hanging):
    store, _ = hanging
    raised_soon(LockLost, lambda: store.within(Countdown(0.3)).get("key"))
    raised_soon(OutcomeUnknown, lambda: store.within(Countdown(0.3)).put("key", b"after"))
    raised_soon(LockLost, lambda: store.within(Countdown(0.3)).namespace("below").list(""))
    raised_soon((LockLost, Unavailable), lambda: store.within(Countdown(0.3)).mirror("key"))


def test_a_call_goes_on_when_the_ownership_is_renewed_while_it_waits(hanging):
    store, server = hanging
    left = Countdown(0.5)
    asked = threading.Event()

    def remaining_s():
        if left() < 0.2:
            left.until += 60.0
            asked.set()
        return left()

    def resume():
        asked.wait(SOON_S)
        server.resume()

    resuming = threading.Thread(target=resume, name="resume")
    resuming.start()
    assert store.within(remaining_s).get("key").value == b"before"
    resuming.join()


def test_a_file_that_another_process_keeps_locked_is_waited_for_no_longer_than_the_ownership_lasts(tmp_path):
    with latchwork.connect(f"sqlite:///{tmp_path}/a.db?call_timeout_s={CALL_TIMEOUT_S}") as store:
        store.put("key", b"before")
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            raised_soon(Unavailable, lambda: store.within(Countdown(0.3)).put("key", b"after"))
        finally:
            other.close()
        assert store.get("key").value == b"before"


def test_nothing_is_asked_once_the_ownership_is_over(memory):
    over = memory.within(lambda: 0.0)
    for call in (
        lambda: over.put("key", b""),
        lambda: over.get("key"),
        lambda: over.commit([], [latchwork.Put("key", b"")]),
        lambda: over.namespace("below").delete("key"),
        lambda: over.pipeline().put("key", b""),
        lambda: over.transact(lambda tx: tx.put("key", b"")),
    ):
        with pytest.raises(LockLost, match="stop the work"):
            call()
    assert memory.list("") == []


def test_the_error_is_the_one_that_was_asked_for(memory):
    with pytest.raises(NotLeader):
        memory.within(lambda: 0.0, error=NotLeader).get("key")


def test_while_it_lasts_it_is_the_same_store(memory):
    within = memory.within(lambda: 60.0)
    entry = within.create("key", b"value")
    assert memory.get("key") == entry
    assert within.get_many(["key", "none"]) == [entry, None]
    assert within.children("") == ["key"]
    within.close()
    assert memory.delete("key"), "closing it leaves the store it came from open"
