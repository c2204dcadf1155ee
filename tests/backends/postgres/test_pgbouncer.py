"""Behind PgBouncer, which gives no session of the server to anybody: how it is found out, and what breaks there.

The conformance suite runs behind it as well, in transaction mode.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

import latchwork
from latchwork.backends.postgres.connection import Connector, Query, Statement
from latchwork.backends.postgres.errors import NoAnswer
from latchwork.backends.url import parse_url
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import ConnectFailed, LatchworkError, OutcomeUnknown
from latchwork.primitives import Lock
from latchwork_testkit.servers import PgBouncer
from patience import eventually

FAST = Query(b"fast", b"select 'fast'::text")
SLOW = Query(b"slow", b"select 'slow'::text from pg_sleep(1)")
MODES = ["session", "transaction"]


@pytest.fixture(params=MODES)
def bouncer(request, postgresql):
    with PgBouncer(postgresql.endpoint, mode=request.param) as server:
        yield server


@pytest.fixture
def bouncer_of_one(postgresql):
    """Opens a connection through a PgBouncer that has one connection to the server."""
    with PgBouncer(postgresql.endpoint, settings={"default_pool_size": "1"}) as bouncer:
        connector = Connector(parse_url(bouncer.url()), SYSTEM_CLOCK)
        yield lambda: closing(connector.open(SYSTEM_CLOCK.now() + 10.0))


def test_calls_sessions_watches_and_locks_work_and_changes_are_polled(bouncer, root, opened):
    store, other = opened(bouncer.url(root)), opened(bouncer.url(root))
    assert store.capabilities.poll_interval_s > 0
    with other.watch("w") as watch:
        assert not watch.next(5.0)
        entry = store.create("w/bound", b"1", session=store.session)
        assert [change.entry for change in watch.next(5.0)] == [entry]
    with Lock(store, "lock") as fence, pytest.raises(latchwork.errors.WaitTimeout):
        assert store.commit([fence], [latchwork.Put("k", b"")]).token > fence.token
        Lock(other, "lock").acquire(timeout_s=0.2)
    store.close()
    eventually(lambda: other.get("w/bound") is None)


def test_a_client_that_leaves_in_the_middle_of_its_statements_leaves_no_answer_to_the_next(bouncer_of_one):
    """PgBouncer 1.18 counts a server as free after the first of several answers, and gives the others to the next."""
    with bouncer_of_one() as connection, pytest.raises(NoAnswer):
        connection.run([Statement(FAST), Statement(SLOW)], SYSTEM_CLOCK.now() + 0.3)
    with bouncer_of_one() as connection:
        assert connection.run([Statement(FAST)], SYSTEM_CLOCK.now() + 5.0) == [[(b"fast",)]]


def test_a_pooler_that_takes_every_setting_is_recognized_by_the_servers_process(postgresql, root, opened):
    settings = {"ignore_startup_parameters": "options"}
    with PgBouncer(postgresql.endpoint, settings=settings) as bouncer:
        store = opened(bouncer.url(root))
        store.put("k", b"")
        assert store.capabilities.poll_interval_s > 0


def test_a_setting_that_a_pooler_refuses_is_named(postgresql, root):
    with (
        PgBouncer(postgresql.endpoint) as bouncer,
        pytest.raises(ConnectFailed, match="synchronous_commit; set it with ALTER ROLE"),
    ):
        latchwork.connect(bouncer.url(root, synchronous_commit="off"))


@pytest.mark.parametrize("mode", MODES)
def test_writes_are_applied_once_while_the_server_behind_the_pooler_is_killed(own, opened, mode):
    """A pooler that loses its server in the middle of a statement answers, and does not know what became of it."""
    with PgBouncer(own.endpoint, mode=mode) as bouncer:
        store, confirmed, unknown, refused = opened(bouncer.url("app", call_timeout_s=10)), [], [], []
        stop = threading.Event()

        def write(first):
            for number in range(first, 1_000_000, 4):
                if stop.is_set():
                    return
                try:
                    store.create("k/t-", b"%d" % number, sequential=True)
                    confirmed.append(b"%d" % number)
                except OutcomeUnknown:
                    unknown.append(b"%d" % number)
                except LatchworkError:
                    refused.append(b"%d" % number)

        threads = [threading.Thread(target=write, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            count = len(confirmed)
            eventually(lambda count=count: len(confirmed) > count + 30, 20.0)
            own.kill()
            own.start()
        count = len(confirmed)
        eventually(lambda: len(confirmed) > count + 30, 20.0)
        stop.set()
        for thread in threads:
            thread.join()
        found = [entry.value for entry in store.list("k")]
        assert len(found) == len(set(found)), "a write was applied twice"
        assert set(confirmed) <= set(found)
        assert not set(refused) & set(found)
        assert set(found) <= {*confirmed, *unknown}


def test_one_connection_to_the_server_is_enough_for_many_stores_in_transaction_mode(postgresql, root, opened):
    with PgBouncer(postgresql.endpoint, settings={"default_pool_size": "1"}) as bouncer:
        stores = [opened(bouncer.url(root)) for _ in range(6)]
        holders, held = [], []

        def hold(store):
            with Lock(store, "lock") as fence:
                holders.append(fence.token)
                held.append(len(holders))
                time.sleep(0.02)
                holders.pop()

        threads = [threading.Thread(target=hold, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
        assert held == [1] * 6


def test_a_pooler_without_room_for_a_client_is_named_and_used_when_there_is_room(postgresql, root):
    with PgBouncer(postgresql.endpoint, settings={"max_client_conn": "2"}) as bouncer:
        with latchwork.connect(bouncer.url(f"{root}-other")) as other, other.watch("") as watch:
            watch.next(5.0)  # so it has its connections
            with pytest.raises(ConnectFailed, match="no more connections allowed"):
                latchwork.connect(bouncer.url(root, connect_timeout_s=0.5))
        latchwork.connect(bouncer.url(root)).close()
