"""What becomes of a write whose connection broke, without a server: the verdict for each value of the write counter."""

from __future__ import annotations

import struct
from contextlib import closing

import pytest
from kazoo.exceptions import ConnectionLoss, SessionExpiredError

from latchwork.backends.timer import Timer
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import ConnectionSettings, ZooKeeperConnection
from latchwork.backends.zookeeper.errors import NoReply, WriteCounterMissing
from latchwork.backends.zookeeper.timing import Timing
from latchwork.backends.zookeeper.wire import Reply
from latchwork.clock import SYSTEM_CLOCK

COUNTER_PATH = "/r/@w/1"


class Deaf:
    def on_connected(self):
        pass

    def on_event(self, kind, path):
        pass

    def on_event_batch_end(self):
        pass

    def on_expired(self):
        return False


@pytest.fixture
def connection():
    with closing(Timer(SYSTEM_CLOCK, "latchwork-test-timer")) as timer:
        settings = ConnectionSettings(
            (("127.0.0.1", 1),), {}, 5.0, SYSTEM_CLOCK, timer, Timing(5.0, servers=1, tls=False)
        )
        opened = ZooKeeperConnection(settings, 5.0, Deaf(), "latchwork-test")
        up(opened)
        opened.counter_path = COUNTER_PATH
        yield opened


def up(connection):
    connection.on_connected(granted_s=5.0, sent_at=0.0, session_id=7)


def write(connection, name):
    return connection.write([wire.encode_set_data(f"/r/{name}", b"=")], connection.deadline())


def lose(connection, *calls):
    for call in calls:
        call.set_exception(ConnectionLoss())
    connection.on_disconnected()
    up(connection)


def answer_settling(connection, number, error=wire.OK):
    barrier, read = connection.take_requests(10**6)
    assert wire.encode_path_request(COUNTER_PATH) == read.payload
    barrier.answer(Reply(wire.OK, 50, b""))
    data = struct.pack("!q", number)
    stat = struct.pack("!qqqqiiiqiiq", 1, 42, 0, 0, number, 0, 0, 7, 8, 0, 1)
    read.answer(Reply(error, 50, wire.encode_bytes(data) + stat))


def test_only_what_settles_is_sent_until_everything_is_settled(connection):
    lost = write(connection, "a")
    assert connection.take_requests(10**6) == [lost]
    newer = write(connection, "b")
    lose(connection, lost)
    read = connection.read(wire.GET_DATA, b"")
    settling = connection.take_requests(10**6)
    assert newer not in settling
    assert len(settling) == 2
    write(connection, "c")
    assert connection.take_requests(10**6) == []
    settling[0].answer(Reply(wire.OK, 50, b""))
    settling[1].answer(Reply(wire.OK, 50, wire.encode_bytes(b"") + bytes(80)))
    sent = connection.take_requests(10**6)
    assert sent[:2] == [lost, newer]
    assert read in sent


def test_a_write_counter_of_its_own_number_means_applied_then_and_there(connection):
    lost = write(connection, "a")
    connection.take_requests(10**6)
    lose(connection, lost)
    answer_settling(connection, 1)
    assert lost.result(0) == Reply(wire.OK, 42, b"", resolved=True)
    assert connection.take_requests(10**6) == []


def test_a_lower_number_sends_it_again_and_a_higher_one_leaves_it_unknown(connection):
    first, second, third = (write(connection, name) for name in "abc")
    connection.take_requests(10**6)
    lose(connection, first, second, third)
    answer_settling(connection, 2)
    assert first.exception(0).sent
    assert second.result(0).resolved
    assert not third.done()
    assert connection.take_requests(10**6) == [third]


def test_a_second_cut_while_settling_settles_all_again(connection):
    lost = write(connection, "a")
    connection.take_requests(10**6)
    lose(connection, lost)
    lose(connection, *connection.take_requests(10**6))
    assert not lost.done()
    answer_settling(connection, 1)
    assert lost.result(0).resolved


def test_without_the_write_counter_nothing_is_known(connection):
    lost = write(connection, "a")
    connection.take_requests(10**6)
    lose(connection, lost)
    answer_settling(connection, 1, wire.NO_NODE)
    assert isinstance(lost.exception(0), NoReply)
    assert lost.exception(0).sent


def test_an_expired_session_leaves_sent_writes_unknown_and_unsent_reads_waiting(connection):
    lost, waiting = write(connection, "a"), None
    connection.take_requests(10**6)
    lost.set_exception(ConnectionLoss())
    waiting = connection.call(wire.GET_DATA, b"")
    assert not connection.on_session_expired()
    assert lost.exception(0).sent
    assert not waiting.done()
    with pytest.raises(WriteCounterMissing):
        write(connection, "b")
    late = connection.call(wire.GET_DATA, b"")
    late.set_exception(SessionExpiredError())
    assert late.exception(0).has_ended
