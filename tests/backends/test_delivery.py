"""A watch delivers until it is closed, and its owner forgets it once."""

from __future__ import annotations

import threading

import pytest

from latchwork.backends.base import Current
from latchwork.backends.delivery import DeliveringWatch

WAIT_S = 10.0
EVENT = Current(1.0)


@pytest.fixture
def dropped():
    return []


def test_a_closed_watch_delivers_nothing_and_is_dropped_once(dropped):
    told = []
    watch = DeliveringWatch("a", told.append, dropped.append)
    watch.deliver(EVENT)
    watch.close()
    watch.close()
    watch.deliver(EVENT)
    assert (told, dropped) == ([EVENT], [watch])


def test_a_sink_may_close_its_own_watch_and_may_raise(dropped):
    def sink(_):
        watch.close()
        raise RuntimeError("the sink's own")

    watch = DeliveringWatch("a", sink, dropped.append)
    watch.deliver(EVENT)
    watch.deliver(EVENT)
    assert dropped == [watch]


def test_every_close_waits_for_the_delivery_that_another_thread_is_in(dropped):
    entered, go_on = threading.Event(), threading.Event()

    def slow(_):
        entered.set()
        assert go_on.wait(WAIT_S)

    watch = DeliveringWatch("a", slow, dropped.append)
    delivery = threading.Thread(target=watch.deliver, args=(EVENT,))
    closers = [threading.Thread(target=watch.close) for _ in range(2)]
    delivery.start()
    assert entered.wait(WAIT_S)
    for closer in closers:
        closer.start()
        closer.join(0.05)
        assert closer.is_alive(), "it returned while an event was being delivered"
    assert dropped == [watch], "its owner can forget it before the sink returns"
    go_on.set()
    for thread in (delivery, *closers):
        thread.join(WAIT_S)
        assert not thread.is_alive()
