"""Lost answers, lost servers, wrong accounts: what was done is known, and everything comes back by itself."""

from __future__ import annotations

import base64
import hashlib
import itertools
import logging
import socket
import threading
import time
from contextlib import closing

import pytest
from kazoo.security import make_acl

from latchwork.backends.base import Broken, Current, Delta, Snapshot
from latchwork.backends.url import open_backend, parse_url
from latchwork.backends.zookeeper.loop import KazooLoop
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import ConnectFailed, OutcomeUnknown, PermissionDenied, Unavailable
from latchwork.types import At, Create, Delete, Put
from latchwork_testkit.servers import ZooKeeperServer
from patience import came_true


def result(future):
    return future.result(15)


def put(backend, key, value=b"v", session=None):
    return result(backend.commit([], [Put(key, value, session)])).entries[0]


def get(backend, key):
    return result(backend.get(key, stale_ok=False))


@pytest.fixture
def lose_answer(proxy):
    """Run a call whose request arrives and whose answer does not; then the connection is back."""

    def lose(call, until):
        proxy.drop_answers.set()
        future = call()
        until()
        proxy.cut()
        proxy.drop_answers.clear()
        return future

    return lose


def test_a_write_whose_answer_was_lost_is_known_to_be_applied(connect, proxy, raw, root, lose_answer, wait_until):
    backend = connect(proxy.endpoint)
    first = put(backend, "k", b"1")
    put(backend, "deep/old")
    path = f"/{root}/k"
    future = lose_answer(
        lambda: backend.commit([At(first)], [Put("k", b"2"), Create("deep/new", b"")]),
        lambda: wait_until(lambda: raw.get(path)[0] == b"=2"),
    )
    committed = result(future)
    assert committed.token == raw.get(path)[1].mzxid
    assert get(backend, "k").version == committed.entries[0].version
    assert get(backend, "k").created == committed.entries[0].created == first.created
    assert result(backend.commit([At(committed.entries[0])], [Put("k", b"3")])).entries[0].value == b"3"


def test_a_write_that_never_arrived_is_sent_again_and_only_once(connect, proxy, raw, root):
    backend = connect(proxy.endpoint)
    put(backend, "k", b"1")
    proxy.cut()
    for number in range(20):
        proxy.cut()
        put(backend, "k", b"%d" % number)
    assert raw.get(f"/{root}/k")[1].version == 21  # the first that overwrites a key counts two


def test_a_lost_write_is_sent_again_before_anything_newer(connect, proxy, raw, root):
    backend = connect(proxy.endpoint)
    put(backend, "k", b"0")
    before = put(backend, "k", b"0").version.data  # from here on each put counts one
    proxy.drop_requests.set()
    lost = backend.commit([], [Put("k", b"1")])
    time.sleep(0.1)
    proxy.refuse.set()
    proxy.cut()
    time.sleep(0.1)
    proxy.drop_requests.clear()
    proxy.refuse.clear()
    newer = []
    while not lost.done():  # some of these come just while it is being settled
        newer.append(backend.commit([], [Put("k", b"newer")]))
        time.sleep(0.0002)
    tokens = [result(each).token for each in (lost, *newer)]
    assert tokens == sorted(tokens)
    assert raw.get(f"/{root}/k")[1].version == before + len(tokens)


def test_a_ticket_whose_answer_was_lost_is_found(connect, proxy, raw, root, lose_answer, wait_until):
    backend = connect(proxy.endpoint)
    result(backend.create_sequential("q/t-", b"1", None))
    future = lose_answer(
        lambda: backend.create_sequential("q/t-", b"2", None),
        lambda: wait_until(lambda: len(raw.get_children(f"/{root}/q")) == 3),
    )
    entry = result(future)
    assert get(backend, entry.key) == entry
    assert entry.value == b"2"


def test_an_ordered_key_whose_answer_was_lost_is_found_and_tells_only_what_it_knows(
    connect, proxy, raw, root, lose_answer, wait_until
):
    backend = connect(proxy.endpoint)
    first = result(backend.create_ordered_key("q/t-", "a", b"1", None)).entry
    future = lose_answer(
        lambda: backend.create_ordered_key("q/t-", "b", b"2", None),
        lambda: wait_until(lambda: len(raw.get_children(f"/{root}/q")) == 2),
    )
    made = result(future)
    assert get(backend, made.entry.key) == made.entry
    assert made.entry.value == b"2"
    assert made.entry.key.startswith("q/t-b-")
    assert made.older in {None, (first.key.removeprefix("q/"),)}


def goes_on(took_s, has_enough):
    return took_s < 4.0 or (took_s < 60.0 and not has_enough)


def test_counting_through_a_bad_line_counts_every_known_increment_once(connect, proxy, raw, root):
    """Increments from four threads while connections are cut at random: known outcomes and the count agree."""
    backend = connect(proxy.endpoint, call_timeout_s=5)
    put(backend, "n", b"0")
    known, unknown = [], []
    begun = time.monotonic()

    def count(mine):
        while goes_on(time.monotonic() - begun, len(known) > 50 and cuts > 10):
            entry = get(backend, mine)
            future = backend.commit([At(entry)], [Put(mine, b"%d" % (int(entry.value) + 1))])
            error = future.exception(15)
            if error is None:
                known.append(mine)
            elif isinstance(error, OutcomeUnknown):
                unknown.append(mine)
            else:
                raise error

    names = [f"n{number}" for number in range(4)]
    for name in names:
        put(backend, name, b"0")
    threads = [threading.Thread(target=count, args=(name,)) for name in names]
    cuts = 0
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        counted = len(known)
        time.sleep(0.15)
        came_true(lambda counted=counted: len(known) > counted, 1.0)  # a late machine takes longer to come back
        proxy.cut()
        cuts += 1
    for thread in threads:
        thread.join()
    assert cuts > 10
    assert len(known) > 50
    for name in names:
        reached = int(get(backend, name).value)
        assert known.count(name) <= reached <= known.count(name) + unknown.count(name)


def a_tree(backend):
    """Three transactions' worth of keys; those below t/a go last."""
    for parent in ("t/z", "t/a"):
        for at in (0, 80):
            result(backend.commit([], [Put(f"{parent}/{number:03d}", b"") for number in range(at, at + 70)]))


def test_a_tree_that_was_deleted_by_halves_when_the_server_went_away_is_said_to_be(connect, proxy, monkeypatch):
    backend = connect(proxy.endpoint, call_timeout_s=1.0)
    a_tree(backend)
    commit = backend._writer.commit

    def commit_once(*call):
        committed = yield from commit(*call)
        proxy.refuse.set()
        proxy.cut()
        return committed

    monkeypatch.setattr(backend._writer, "commit", commit_once)
    with pytest.raises(OutcomeUnknown, match=r"100 of 280 keys were deleted, then: .*again for the rest") as caught:
        backend.delete_tree("t").result(15)
    assert "nothing was changed" not in str(caught.value)


def test_a_tree_that_was_deleted_by_halves_for_want_of_rights_is_said_to_be(backend, raw, root):
    a_tree(backend)
    raw.set_acls(f"/{root}/t/a", [make_acl("world", "anyone", read=True, write=True, create=True)])
    with pytest.raises(PermissionDenied, match=r"100 of 280 keys were deleted, then: .*no right"):
        backend.delete_tree("t").result(15)
    assert len(result(backend.list("t", recursive=True, limit=None, start_after=None))) == 180


def test_an_order_of_pipelined_writes_survives_cuts(connect, proxy):
    backend = connect(proxy.endpoint)
    put(backend, "k", b"-1")
    for attempt in range(5):
        futures = [backend.commit([], [Put("k", b"%d" % number)]) for number in range(300)]
        time.sleep(0.005 * attempt)
        proxy.cut()
        errors = [future.exception(15) for future in futures]
        assert all(error is None or isinstance(error, OutcomeUnknown) for error in errors)
        assert errors[-1] is None
        assert get(backend, "k").value == b"299"


def test_without_a_server_calls_end_in_time_and_say_what_is_known(connect, proxy):
    backend = connect(proxy.endpoint, call_timeout_s=1.0)
    put(backend, "k")
    proxy.drop_answers.set()
    sent = backend.commit([], [Put("k", b"2")])
    time.sleep(0.2)
    proxy.refuse.set()
    proxy.cut()
    begun = time.monotonic()
    unsent = backend.commit([], [Put("k", b"3")])
    read = backend.get("k", stale_ok=False)
    assert isinstance(sent.exception(5), OutcomeUnknown)
    assert type(unsent.exception(5)) is Unavailable
    assert type(read.exception(5)) is Unavailable
    assert time.monotonic() - begun < 4.0
    proxy.drop_answers.clear()
    proxy.refuse.clear()
    assert get(backend, "k").value == b"2"  # and the one said not to be applied never is


def test_reconnection_takes_less_than_a_second(connect, proxy):
    backend = connect(proxy.endpoint, call_timeout_s=20)
    put(backend, "k")
    took_s = []
    for _ in range(3):
        proxy.refuse.set()
        proxy.cut()
        time.sleep(1.5)
        waiting = backend.get("k", stale_ok=False)
        proxy.refuse.clear()
        begun = time.monotonic()
        result(waiting)
        took_s.append(time.monotonic() - begun)
    assert min(took_s) < 1.0, "a pause that grows would be longer each time"


def test_unreachable_servers_and_unknown_hosts_fail_in_time():
    for host in ("127.0.0.1:1", "no-such-host.invalid:2181"):
        begun = time.monotonic()
        with pytest.raises(ConnectFailed, match="answered within"):
            open_backend(parse_url(f"zk://u:hidden@{host}/r?connect_timeout_s=0.7"), SYSTEM_CLOCK)
        assert time.monotonic() - begun < 3.0


class Events:
    """A sink that keeps what it gets, and the state it adds up to."""

    def __init__(self):
        self.all = []
        self.state = {}

    def __call__(self, event):
        self.all.append(event)
        if isinstance(event, Snapshot):
            self.state = {entry.key: entry for entry in event.entries}
        elif isinstance(event, Delta):
            for change in event.changes:
                before = self.state.pop(change.key, None)
                if change.entry is not None:
                    assert before is None or before.token < change.entry.token, "it moved backwards"
                    self.state[change.key] = change.entry

    def of(self, kind):
        return [event for event in self.all if isinstance(event, kind)]


def test_watches_survive_cuts_and_miss_nothing(connect, proxy, backend, wait_until):
    watching = connect(proxy.endpoint)
    events = {prefix: Events() for prefix in ("", "a", "a/b")}
    for prefix, sink in events.items():
        watching.watch(prefix, sink)
    for number in range(120):
        put(backend, f"a/b/{number % 7}", b"%d" % number)
        put(backend, f"c/{number % 5}", b"%d" % number)
        if number % 3 == 0:
            result(backend.commit([], [Delete(f"a/b/{(number + 3) % 7}")]))
        if number % 30 == 29:
            proxy.cut()
    final = {entry.key: entry for entry in result(backend.list("", recursive=True, limit=None, start_after=None))}
    wait_until(lambda: events[""].state == final)
    below = {key: entry for key, entry in final.items() if key.startswith("a/b/")}
    for prefix in ("a", "a/b"):
        wait_until(lambda prefix=prefix: events[prefix].state == below)


def test_watches_that_are_asked_to_prove_it_are_told_every_two_seconds_that_they_are_current(backend):
    events = Events()
    backend.watch("a", events).prove_current()
    time.sleep(2.5)
    marks = [event.as_of for event in events.all]
    assert len(events.of(Current)) >= 2
    assert all(later - earlier < 2.0 for earlier, later in itertools.pairwise(marks))


def test_a_closed_watch_is_silent_and_gone_from_the_server(backend, other, raw, root, wait_until):
    events, stays = Events(), Events()
    watch = backend.watch("a", events)
    same = backend.watch("a", stays)
    wait_until(lambda: events.all and stays.all)
    watch.close()
    seen = len(events.all)
    put(other, "a/k")
    wait_until(lambda: stays.of(Delta))
    assert len(events.all) == seen
    assert f"/{root}/a" in raw.command(b"wchp")
    same.close()
    wait_until(lambda: f"/{root}/a\n" not in raw.command(b"wchp"))


def test_a_thousand_watches_cost_no_thread(backend):
    put(backend, "k")
    before = threading.active_count()
    watches = [backend.watch(f"w/{number}", Events()) for number in range(1000)]
    assert threading.active_count() == before
    for watch in watches:
        watch.close()


def test_a_change_of_binding_and_a_recreation_show_as_newly_created(backend, wait_until):
    events = Events()
    backend.watch("k", events)
    wait_until(lambda: events.all)
    first = put(backend, "k")
    result(backend.commit([], [Delete("k")]))
    put(backend, "k")
    session = result(backend.open_session(5.0, lambda: None))
    bound = put(backend, "k", session=session)
    wait_until(lambda: events.state.get("k") == bound)
    assert events.state["k"].created > first.created


def test_everything_returns_after_the_server_was_killed(wait_until, caplog, root):
    with ZooKeeperServer() as server:
        backend = open_backend(parse_url(f"zk://{server.endpoint}/{root}?call_timeout_s=15"), SYSTEM_CLOCK)
        try:
            events = Events()
            backend.watch("", events)
            session = result(backend.open_session(10.0, lambda: pytest.fail("it was lost")))
            put(backend, "mine", session=session)
            with caplog.at_level(logging.WARNING):
                server.kill()
                waiting = backend.commit([], [Put("k", b"after")])
                server.restart()
                result(waiting)
                result(session.renew())
            wait_until(lambda: events.state.keys() == {"mine", "k"})
            assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        finally:
            backend.close()


def test_accounts_see_only_what_their_acl_lets_them(zookeeper, root, raw, wait_until):
    raw.create(f"/{root}")
    opened = []

    def connect(account, **options):
        url = parse_url(f"zk://{account}{zookeeper.endpoint}/{root}", options)
        opened.append(open_backend(url, SYSTEM_CLOCK))
        return opened[-1]

    try:
        owner = connect("ann:secret@")
        put(owner, "k")
        raw.add_auth("digest", "ann:secret")
        put(owner, "deep/below/k")
        paths = [f"/{root}"]
        for path in paths:
            paths += [f"{path}/{child}" for child in raw.get_children(path)]
        assert {f"/{root}/k", f"/{root}/deep/below/k"} < set(paths)
        for path in paths[1:]:  # the root was there before
            assert [(acl.perms, acl.id.scheme) for acl in raw.get_acls(path)[0]] == [(31, "digest")], path
        assert get(connect("ann:secret@"), "k").value == b"v"
        for account in ("", "ann:wrong@", "bob:secret@"):
            stranger = connect(account)
            assert not stranger.capabilities.verifies_password
            with pytest.raises(PermissionDenied, match="'k'"):
                get(stranger, "k")
            with pytest.raises(PermissionDenied):
                put(stranger, "k")
            events = Events()
            stranger.watch("k", events)
            wait_until(lambda events=events: events.of(Broken))
            assert isinstance(events.of(Broken)[0].error, PermissionDenied)
        put(connect("ann:secret@", acl="open"), "everyones")
        assert [acl.perms for acl in raw.get_acls(f"/{root}/everyones")[0]] == [31]
    finally:
        for each in opened:
            each.close()


def test_no_log_of_any_level_has_the_password(zookeeper, root, caplog):
    logger = logging.getLogger("latchwork.backends.zookeeper.kazoo")
    level = logger.level
    try:
        logger.setLevel(1)
        with caplog.at_level(1):
            url = parse_url(f"zk://ann:hidden-word@{zookeeper.endpoint}/{root}")
            with closing(open_backend(url, SYSTEM_CLOCK)) as backend:
                put(backend, "k")
    finally:
        logger.setLevel(level)
    assert "Connecting to" in caplog.text
    assert "hidden-word" not in caplog.text


def test_a_root_may_be_provisioned_for_accounts_that_cannot_create_it(root, raw):
    credential = "ann:" + base64.b64encode(hashlib.sha1(b"ann:secret").digest()).decode()
    raw.create(f"/{root}")
    raw.create(f"/{root}/mine", acl=[make_acl("digest", credential, all=True)])
    raw.set_acls(f"/{root}", [make_acl("world", "anyone", read=True)])
    endpoint = "{}:{}".format(*raw.hosts[0])
    with (
        closing(open_backend(parse_url(f"zk://ann:secret@{endpoint}/{root}/missing"), SYSTEM_CLOCK)) as backend,
        pytest.raises(PermissionDenied, match=root),
    ):
        put(backend, "k")
    with closing(open_backend(parse_url(f"zk://ann:secret@{endpoint}/{root}/mine"), SYSTEM_CLOCK)) as backend:
        assert put(backend, "k").value == b"v"
        assert get(backend, "k").value == b"v"


def test_close_joins_all_threads_and_twice_is_fine(connect):
    before = set(threading.enumerate())
    backend = connect()
    result(backend.open_session(5.0, lambda: None))
    backend.watch("", Events())
    backend.close()
    backend.close()
    assert not [thread for thread in threading.enumerate() if thread not in before]


@pytest.mark.parametrize("error", [UnicodeError("label empty or too long"), ValueError("odd"), OSError("no network")])
def test_a_host_that_cannot_be_looked_up_keeps_nobody_from_the_others(connect, zookeeper, root, monkeypatch, error):
    really = socket.getaddrinfo

    def look_up(host, *args):
        if host == "odd.example":
            raise error
        return really(host, *args)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    backend = connect(f"odd.example:1,{zookeeper.endpoint}", connect_timeout_s=5)
    assert put(backend, "k").value == b"v"


def test_a_connection_goes_on_after_an_error_that_nobody_foresaw(connect, proxy, monkeypatch):
    backend = connect(proxy.endpoint)
    really, raised = KazooLoop._receive, []

    def receive(loop):
        if not raised:
            raised.append(True)
            raise RuntimeError("not foreseen")
        really(loop)

    monkeypatch.setattr(KazooLoop, "_receive", receive)
    assert put(backend, "k").value == b"v"
    assert raised
