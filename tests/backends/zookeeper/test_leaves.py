"""Watches of single keys: what they ask the server for, what they believe, and how they live beside other watches."""

from __future__ import annotations

import struct
import threading

import pytest

from latchwork.backends.base import Broken, Delta, Snapshot
from latchwork.backends.timer import Timer
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import ConnectionSettings, ZooKeeperConnection
from latchwork.backends.zookeeper.layout import ZnodeLayout
from latchwork.backends.zookeeper.reads import ZooKeeperReader
from latchwork.backends.zookeeper.timing import Timing
from latchwork.backends.zookeeper.watching.single_keys import SingleKeyWatches
from latchwork.backends.zookeeper.wire import GET_CHILDREN, GET_DATA, MULTI, REMOVE_WATCHES, Reply
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import PermissionDenied
from latchwork.types import Delete, Put

PATH = "/r/q/a"


class Deaf:
    def on_connected(self):
        pass

    def on_event(self, kind, path):
        pass

    def on_event_batch_end(self):
        pass

    def on_expired(self):
        return False


class Stage:
    """A hub of leaf watches on a connection whose server is this test."""

    def __init__(self, timer):
        settings = ConnectionSettings(
            (("127.0.0.1", 1),), {}, 5.0, SYSTEM_CLOCK, timer, Timing(5.0, servers=1, tls=False)
        )
        self.connection = ZooKeeperConnection(settings, 5.0, Deaf(), "latchwork-test")
        self.connection.on_connected(granted_s=5.0, sent_at=0.0, session_id=7)
        self.others = set()
        self.hub = SingleKeyWatches(
            self.connection,
            ZooKeeperReader(ZnodeLayout("r")),
            timer,
            lock=threading.Lock(),
            is_watched=self.others.__contains__,
        )
        self.told = []

    def watch(self, *, siblings=False):
        return self.hub.watch("q/a", self.told.append, siblings=siblings)

    def asked(self):
        return self.connection.take_requests(10**6)

    def event(self, kind):
        self.hub.on_event(kind, PATH)

    def new_connection(self):
        self.connection.on_disconnected()
        self.connection.on_connected(granted_s=5.0, sent_at=0.0, session_id=7)
        self.hub.on_connected()


@pytest.fixture
def stage():
    timer = Timer(SYSTEM_CLOCK, "latchwork-test-timer")
    yield Stage(timer)
    timer.close()


def there(value=b"=x", mzxid=42):
    return Reply(
        wire.OK, 50, wire.encode_bytes(value) + struct.pack("!qqqqiiiqiiq", 1, mzxid, 0, 0, 0, 0, 0, 7, 2, 0, 1)
    )


ABSENT = Reply(wire.NO_NODE, 50, b"")


def kinds(calls):
    return [call.kind for call in calls]


def test_a_watch_costs_one_request_and_its_end_none(stage):
    watch = stage.watch()
    (ask,) = stage.asked()
    assert (ask.kind, ask.payload) == (GET_DATA, wire.encode_get_data_and_watch(PATH))
    ask.answer(there())
    stage.event(wire.DELETED)
    watch.close()
    assert stage.asked() == []
    snapshot, end = stage.told
    assert [entry.key for entry in snapshot.entries] == ["q/a"]
    assert [(change.key, change.entry) for change in end.changes] == [("q/a", None)]


def test_a_watch_that_is_closed_before_it_fired_is_removed_at_the_server(stage):
    watch = stage.watch()
    stage.asked()[0].answer(there())
    watch.close()
    assert kinds(stage.asked()) == [REMOVE_WATCHES]


def test_one_of_two_watches_of_a_key_leaves_the_servers_for_the_other(stage):
    first, second = stage.watch(), stage.watch()
    for ask in stage.asked():
        ask.answer(there())
    first.close()
    assert stage.asked() == []
    second.close()
    assert kinds(stage.asked()) == [REMOVE_WATCHES]


def test_a_state_without_the_key_is_believed_only_behind_a_barrier(stage):
    stage.watch()
    stage.asked()[0].answer(ABSENT)  # by a server that may lag behind
    assert stage.told == []
    barrier, ask = stage.asked()
    assert (barrier.kind, ask.kind) == (MULTI, GET_DATA)
    barrier.answer(Reply(wire.OK, 50, b""))
    ask.answer(ABSENT)
    assert [type(event) for event in stage.told] == [Snapshot]
    assert stage.told[0].entries == ()


def test_a_key_that_a_lagging_server_did_not_know_is_found_behind_the_barrier(stage):
    stage.watch()
    stage.asked()[0].answer(ABSENT)
    barrier, ask = stage.asked()
    barrier.answer(Reply(wire.OK, 50, b""))
    ask.answer(there())
    assert [entry.value for entry in stage.told[0].entries] == [b"x"]


def test_a_deletion_told_before_the_first_state_may_be_an_older_one_and_is_looked_at_again(stage):
    stage.watch()
    (ask,) = stage.asked()
    stage.event(wire.DELETED)  # of an earlier key of that name: another watch of the connection saw it
    ask.answer(there())
    assert stage.told == []
    (again,) = stage.asked()
    again.answer(there())
    assert [type(event) for event in stage.told] == [Snapshot]


def test_a_change_is_read_with_the_next_watch(stage):
    stage.watch()
    stage.asked()[0].answer(there())
    stage.event(wire.CHANGED)
    (ask,) = stage.asked()
    assert ask.payload == wire.encode_get_data_and_watch(PATH)
    ask.answer(there(b"=y", 43))
    assert [change.entry.value for change in stage.told[1].changes] == [b"y"]


def test_an_older_state_of_another_server_is_not_told(stage):
    stage.watch()
    stage.asked()[0].answer(there(b"=new", 43))
    stage.new_connection()
    stage.asked()[0].answer(there(b"=old", 42))
    assert len(stage.told) == 1


def test_a_new_connection_sets_the_watch_anew_and_what_comes_of_the_old_one_is_of_no_use(stage):
    stage.watch()
    (lost,) = stage.asked()
    stage.new_connection()
    (ask,) = stage.asked()
    assert ask.payload == wire.encode_get_data_and_watch(PATH)
    lost.answer(there(b"=late", 44))
    assert stage.told == []


def test_where_another_watch_of_the_store_serves_none_is_asked_for(stage):
    stage.others.add("q/a")
    watch = stage.watch()
    (ask,) = stage.asked()
    assert ask.payload == wire.encode_path_request(PATH)  # a one-shot watch would replace the persistent one
    ask.answer(there())
    watch.close()
    assert stage.asked() == []  # its watch stays the server's


def test_names_beside_a_key_are_asked_for_by_who_hears_of_its_end(stage):
    stage.watch(siblings=True)
    stage.asked()[0].answer(there())
    stage.event(wire.DELETED)
    (ask,) = stage.asked()
    assert (ask.kind, ask.payload) == (GET_CHILDREN, wire.encode_path_request("/r/q"))
    assert len(stage.told) == 1
    ask.answer(Reply(wire.OK, 50, wire.INT.pack(2) + wire.encode_text("#keep") + wire.encode_text("b")))
    assert stage.told[1].siblings == ("b",)


def test_an_end_is_told_without_names_when_they_could_not_be_read(stage):
    stage.watch(siblings=True)
    stage.asked()[0].answer(there())
    stage.event(wire.DELETED)
    stage.asked()[0].set_exception(ConnectionError())
    assert isinstance(stage.told[1], Delta)
    assert stage.told[1].siblings is None


# Against a server.


def test_it_hears_of_an_end_that_came_while_it_was_cut_off(connect, proxy, backend, wait_until):
    backend.commit([], [Put("q/a", b"")]).result(5)
    told = []
    cut_off = connect(proxy.endpoint)
    cut_off.watch("q/a", told.append, single_key=True)
    wait_until(lambda: told)
    proxy.refuse.set()
    proxy.cut()
    backend.commit([], [Delete("q/a")]).result(5)
    proxy.refuse.clear()
    wait_until(lambda: len(told) == 2)
    assert told[1].changes[0].entry is None


@pytest.mark.parametrize("leaf_first", [True, False])
def test_a_leaf_and_another_watch_of_the_same_key_both_hear_of_every_change(backend, wait_until, leaf_first):
    backend.commit([], [Put("q/a", b"0")]).result(5)
    values = {True: [], False: []}

    def note(leaf):
        return lambda event: values[leaf].extend(
            change.entry and change.entry.value for change in getattr(event, "changes", ())
        )

    for leaf in (leaf_first, not leaf_first):
        backend.watch("q/a", note(leaf), single_key=leaf)
        backend.get("q/a", stale_ok=True).result(5)
    for number in range(1, 6):
        value = b"%d" % number
        backend.commit([], [Put("q/a", value)]).result(5)
        wait_until(lambda value=value: value in values[True] and value in values[False])
    backend.commit([], [Delete("q/a")]).result(5)
    wait_until(lambda: values[True][-1:] == [None] and values[False][-1:] == [None])


def test_a_leaf_lives_on_when_another_watch_of_its_key_is_closed(backend, wait_until):
    backend.commit([], [Put("q/a", b"0")]).result(5)
    told = []
    leaf = backend.watch("q/a", told.append, single_key=True)
    wait_until(lambda: told)
    backend.watch("q/a", lambda event: None).close()
    backend.commit([], [Put("q/a", b"1")]).result(5)
    wait_until(lambda: len(told) == 2)
    backend.commit([], [Delete("q/a")]).result(5)
    wait_until(lambda: len(told) == 3)
    leaf.close()


def test_another_watch_lives_on_when_a_leaf_of_its_key_is_closed(backend, wait_until):
    backend.commit([], [Put("q/a", b"0")]).result(5)
    told, leaf_told = [], []
    leaf = backend.watch("q/a", leaf_told.append, single_key=True)
    wait_until(lambda: leaf_told)
    backend.watch("q/a", told.append)
    wait_until(lambda: told)
    leaf.close()
    for value in (b"1", b"2"):
        backend.commit([], [Put("q/a", value)]).result(5)
        wait_until(
            lambda value=value: any(
                change.entry.value == value for event in told for change in getattr(event, "changes", ())
            )
        )


def test_without_rights_it_ends_with_permission_denied(backend, raw, root, wait_until):
    from kazoo.security import make_digest_acl

    backend.commit([], [Put("q/a", b"")]).result(5)
    raw.set_acls(f"/{root}/q/a", [make_digest_acl("ann", "secret", all=True)])
    told = []
    backend.watch("q/a", told.append, single_key=True)
    wait_until(lambda: told)
    assert isinstance(told[0], Broken)
    assert isinstance(told[0].error, PermissionDenied)


def test_deleting_tickets_has_nobody_look_at_their_parent_which_is_never_removed(backend, wait_until):
    made = [backend.create_sequential("q/t", b"", None).result(5) for _ in range(2)]
    swept = []
    backend._writer._on_emptied = swept.extend
    for entry in made:
        backend.commit([], [Delete(entry.key)]).result(5)
    backend.commit([], [Put("p/a", b"")]).result(5)
    backend.commit([], [Delete("p/a")]).result(5)
    wait_until(lambda: swept == ["p"])
