"""Linearizable reads begin with a barrier on the very connection that they go through. There is no server here."""

from __future__ import annotations

from contextlib import closing

import pytest
from kazoo.exceptions import ConnectionLoss

from latchwork.backends.futures import run_generator
from latchwork.backends.timer import Timer
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import ConnectionSettings, ZooKeeperConnection
from latchwork.backends.zookeeper.errors import NoReply
from latchwork.backends.zookeeper.layout import ZnodeLayout
from latchwork.backends.zookeeper.reads import Lister, ZooKeeperReader
from latchwork.backends.zookeeper.timing import Timing
from latchwork.backends.zookeeper.wire import GET_DATA, NO_NODE, OK, Reply
from latchwork.backends.zookeeper.writing.states import read_states
from latchwork.clock import SYSTEM_CLOCK

BARRIER = wire.encode_multi([wire.encode_check("/")])
ALL = 10**6


class Deaf:
    def on_connected(self):
        pass

    def on_event(self, kind, path):
        pass

    def on_event_batch_end(self):
        pass

    def on_expired(self):
        return False


def up(connection):
    connection.on_connected(granted_s=5.0, sent_at=0.0, session_id=7)


@pytest.fixture
def connection():
    with closing(Timer(SYSTEM_CLOCK, "latchwork-test-timer")) as timer:
        settings = ConnectionSettings(
            (("127.0.0.1", 1),), {}, 5.0, SYSTEM_CLOCK, timer, Timing(5.0, servers=1, tls=False)
        )
        opened = ZooKeeperConnection(settings, 5.0, Deaf(), "latchwork-test")
        up(opened)
        yield opened


READS = {
    "get": lambda reader, *through: reader.get(through[0], "a/k", through[1], stale_ok=False),
    "get_many": lambda reader, *through: reader.get_many(through[0], ["a/k", "b"], through[1]),
    "level": lambda reader, *through: Lister(reader).list_direct_entries(through[0], "a", None, None, through[1]),
    "subtree": lambda reader, *through: Lister(reader).list_subtree(through[0], "a", None, None, through[1]),
    "part of a subtree": lambda reader, *through: Lister(reader).list_subtree(through[0], "a", 5, "a/b", through[1]),
    "children": lambda reader, *through: Lister(reader).children(through[0], "a", through[1]),
    "states": lambda reader, *through: read_states(reader, through[0], ["a/k"], through[1]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_linearizable_read_begins_with_a_barrier(connection, read):
    run_generator(read(ZooKeeperReader(ZnodeLayout("r")), connection, connection.deadline()))
    barrier, *reads = connection.take_requests(ALL)
    assert barrier.payload == BARRIER
    assert reads, "it costs no round trip of its own"


@pytest.mark.parametrize("read", [READS["level"], READS["subtree"], READS["children"]])
def test_names_do_not_count_if_the_barrier_before_them_was_not_answered(connection, read):
    names = run_generator(read(ZooKeeperReader(ZnodeLayout("r")), connection, connection.deadline()))
    barrier, asked = connection.take_requests(ALL)
    barrier.set_exception(ConnectionLoss())
    asked.answer(Reply(NO_NODE, 50, b""))  # by a server that has not seen the latest writes, perhaps
    with pytest.raises(NoReply):
        names.result(0.0)


def test_a_read_is_believed_only_behind_a_barrier_of_its_own_connection(connection):
    read = connection.read(GET_DATA, b"")
    (barrier,) = connection.take_requests(1)
    barrier.answer(Reply(OK, 50, b""))
    connection.on_disconnected()
    up(connection)
    assert connection.take_requests(ALL) == [read]
    assert not read.linearizable, "its barrier was answered by another server, perhaps"


def test_a_read_whose_barrier_failed_is_not_believed(connection):
    read = connection.read(GET_DATA, b"")
    barrier, _ = connection.take_requests(ALL)
    barrier.set_exception(ConnectionLoss())
    assert not read.linearizable
    again = connection.read(GET_DATA, b"")
    barrier, _ = connection.take_requests(ALL)
    barrier.answer(Reply(OK, 50, b""))
    assert again.linearizable
