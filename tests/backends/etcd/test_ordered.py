"""Ordered keys on etcd: one transaction, and nothing beside the keys."""

from __future__ import annotations

from latchwork.backends.base import MAX_OLDER
from latchwork.types import Delete


def make(backend, unique, session=None):
    return backend.create_ordered_key("q/t-", unique, b"v", session).result(5)


def test_the_oldest_are_named_up_to_a_limit_and_nothing_of_them_stays(backend, raw, root):
    session = backend.open_session(10, lambda: None).result(5)
    made = [make(backend, f"{number:03}", session) for number in range(MAX_OLDER + 2)]
    names = tuple(each.entry.key.removeprefix("q/") for each in made)
    assert [each.older for each in made] == [names[:at] for at in range(MAX_OLDER + 1)] + [None]
    assert {each.entry.owner for each in made} == {session.id}
    for each in made:
        backend.commit([], [Delete(each.entry.key)]).result(5)
    assert [key for key in raw.values(f"/{root}/".encode()) if b"/@s/" not in key and b"/@w/" not in key] == []


def test_creators_do_not_refuse_each_other(backend, monkeypatch):
    """A counter would be compared and written by all of them."""
    make(backend, "first")
    sent, send = [], backend._connection.send
    monkeypatch.setattr(
        backend._connection, "send", lambda *args, **options: sent.append(args[0]) or send(*args, **options)
    )
    futures = [backend.create_ordered_key("q/t-", f"{number}", b"", None) for number in range(40)]
    assert len({future.result(5).entry.created for future in futures}) == 40
    assert sent == ["Txn"] * 40
