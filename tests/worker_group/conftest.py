"""Workers of one group, each with a client, and so a session, of its own."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from latchwork.errors import LatchworkError
from latchwork.store import system_namespace
from latchwork.worker_group import GroupWorker, WorkerInfo
from primitives.conftest import connect, eventually_fixture, in_thread  # noqa: F401 - fixtures

#: Seconds after which what should happen counts as never happening.
PATIENCE_S = 60.0


@pytest.fixture
def store(store):
    """The namespace of the system, in which its keys are as its modules write them."""
    return system_namespace(store, "workers")


@pytest.fixture
def worker(connect):  # noqa: F811
    """Make a worker; its store is closed after the test."""
    made = []

    def make(key="a", group="train", *, store=None, joins=True, **options):
        options.setdefault("info", WorkerInfo(ip="10.0.0.7", ports={"data": 9000}))
        one = GroupWorker(store or connect(), group, key=key, **options)
        made.append(one)
        if joins:
            one.join(PATIENCE_S)
        return one

    yield make
    for each in made:
        with suppress(LatchworkError):
            each.close()


@pytest.fixture
def team(worker):
    """Workers a, b, c, ... of one group, joined in this spec."""

    def make(count, group="train", **options):
        return [worker("abcdefgh"[number], group, workers=count, **options) for number in range(count)]

    return make


@pytest.fixture
def all_at_once(in_thread):  # noqa: F811
    """Do something for each of many, in a thread each; the results in spec."""

    def do(fn, each_of):
        running = [in_thread(lambda one=one: fn(one)) for one in each_of]
        return [one.outcome(PATIENCE_S) for one in running]

    return do


class Killed(BaseException):
    """The process is no more."""


class KilledAt:
    """Ends the thread it was made in at its call of a number, and all later ones."""

    def __init__(self, number):
        self.left, self.thread = number, threading.get_ident()

    def next_fault(self, _op, _keys):
        if threading.get_ident() != self.thread:
            return
        self.left -= 1
        if self.left < 0:
            raise Killed
        return


def die(one):
    """A worker's process dies: its session ends without a word."""
    one._core.require_membership().session.close()
