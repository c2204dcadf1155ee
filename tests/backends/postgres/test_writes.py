"""Many writes in one statement, tokens in the order of commits, and writes whose answer was lost."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from latchwork import Create, Delete, Put
from latchwork.errors import Conflict, InvalidKey, OutcomeUnknown
from patience import eventually


def test_tokens_grow_in_the_order_in_which_commits_become_visible(postgresql, root, opened):
    """A reader who has seen a token has seen every smaller one, with six writers at work."""
    writers, stop, seen = [opened(postgresql.url(root)) for _ in range(6)], threading.Event(), []
    reader = opened(postgresql.url(root))

    def write(number):
        count = 0
        while not stop.is_set():
            writers[number].put(f"k/{number}/{count % 40}", b"%d" % count)
            count += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    try:
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            seen.append({(entry.key, entry.token) for entry in reader.list("k", recursive=True)})
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for before, after in itertools.pairwise(seen):
        newest = max((token for _, token in before), default=0)
        assert all(token > newest for _, token in after - before), "a smaller token appeared later"


def test_commits_that_wait_are_one_statement_and_each_has_its_own_end(postgresql, root, opened):
    store = opened(postgresql.url(root))
    store.create("bound", b"", session=store.session)
    store.put("taken", b"")
    with store.pipeline() as pipeline:
        puts = [pipeline.put(f"k/{number}", b"%d" % number) for number in range(300)]
        refused = pipeline.put("bound/below", b"")
        taken = pipeline.commit([], [Create("taken", b""), Put("k/never", b"")])
        numbers = [pipeline.create("n/t-", b"", sequential=True) for _ in range(20)]
    tokens = [future.result(10.0).token for future in puts]
    assert len(set(tokens)) == 300
    with pytest.raises(InvalidKey, match="'bound', which is bound to a session"):
        refused.result(10.0)
    with pytest.raises(Conflict):
        taken.result(10.0)
    assert store.get("k/never") is None
    assert sorted(future.result(10.0).key for future in numbers) == [f"n/t-{number:010d}" for number in range(20)]
    assert {entry.key: entry.value for entry in store.list("k")} == {f"k/{n}": b"%d" % n for n in range(300)}


@pytest.fixture
def behind(postgresql, root, opened, proxied):
    """A store behind a proxy, another one that is not, and the proxy."""
    proxy, url = proxied(postgresql, root, call_timeout_s=5)
    store, other = opened(url), opened(postgresql.url(root))
    store.put("warm", b"")
    return store, other, proxy


def lose_answer(proxy, call):
    """Make the call in a thread; its answer is lost with the connection once the server has sent it. Its future."""
    done = []

    def run():
        try:
            done.append(call())
        except Exception as error:
            done.append(error)

    before = proxy.held_bytes
    proxy.hold("answers")
    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: proxy.held_bytes > before)
    proxy.cut()
    proxy.release()
    thread.join(20.0)
    return done[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.put("k", b"new"),
        lambda store: store.create("c", b"new"),
        lambda store: store.create("c", b"new", session=store.session),
        lambda store: store.commit([], [Put("k", b"new"), Create("c", b"1"), Delete("d"), Delete("absent")]),
        lambda store: store.create("n/t-", b"", sequential=True),
        lambda store: store.create_ordered_key("o/t-", "x", b"").entry,
        lambda store: store.delete_tree("t"),
        lambda store: store.delete("d"),
    ],
    ids=["put", "create", "bound", "commit", "sequential", "ordered", "tree", "delete"],
)
def test_a_write_whose_answer_is_lost_is_applied_once_and_answered_as_if_it_had_not_been(behind, call):
    store, other, proxy = behind
    store.session  # noqa: B018 - opened before the trouble
    for key in ("k", "d", "t/1", "t/2", "t"):
        store.put(key, b"old")
    created = store.get("k").created
    answer = lose_answer(proxy, lambda: call(store))
    assert not isinstance(answer, Exception), repr(answer)
    if hasattr(answer, "key"):
        assert other.get(answer.key) == answer
        assert answer.key in {"k", "c", "n/t-0000000000", "o/t-x"}
        assert answer.created == (created if answer.key == "k" else answer.token)
    elif hasattr(answer, "entries"):
        assert list(answer.entries) == [other.get("k"), other.get("c")]
        assert answer.deleted == ("d",)
    else:
        assert answer in {3, True}
        assert other.get("t" if answer == 3 else "d") is None


def test_a_write_that_hangs_in_the_network_never_lands_once_its_store_has_read_again(behind):
    store, other, proxy = behind
    with pytest.raises(OutcomeUnknown):
        held_beyond_its_timeout(store, proxy)
    assert store.get("k") is None
    other.put("k", b"newer")
    proxy.release()
    assert eventually(lambda: proxy.late_bytes)
    time.sleep(0.5)
    assert other.get("k").value == b"newer", "the late write landed"
    assert store.put("k", b"last").value == b"last"


def held_beyond_its_timeout(store, proxy):
    """A put that is held before the server; the store then connects anew, past it."""
    proxy.hold("requests", open_only=True)
    threading.Timer(4.5, proxy.refuse, kwargs={"new_only": True}).start()
    threading.Timer(5.5, proxy.accept).start()
    threading.Timer(1.0, proxy.cut_clients).start()
    proxy.refuse(new_only=True)
    store.put("k", b"late")


def test_a_writer_that_was_forgotten_writes_on(postgresql, root, opened, sql):
    store = opened(postgresql.url(root))
    store.put("k", b"1")
    sql(postgresql, "delete from latchwork.writers where root = (select id from latchwork.roots where name = %s)", root)
    assert store.put("k", b"2").value == b"2"
    sql(postgresql, "delete from latchwork.writers where root = (select id from latchwork.roots where name = %s)", root)
    assert store.delete_tree("k") == 1
