"""Lists of a part cost what they return, in requests, and are that part of the whole."""

from __future__ import annotations

import random

import pytest

from latchwork.types import Put

MANY = 3_000


def result(future):
    return future.result(30)


def put_all(backend, keys):
    pending = [
        backend.commit([], [Put(key, key.encode()) for key in keys[at : at + 50]]) for at in range(0, len(keys), 50)
    ]
    for each in pending:
        result(each)


@pytest.fixture
def requests(backend, monkeypatch):
    """Counts what is asked of the server while a call runs."""
    asked, call = [], backend._main.call

    def count(*arguments):
        asked.append(arguments)
        return call(*arguments)

    def requests_of(act):
        del asked[:]
        return result(act()), len(asked)

    monkeypatch.setattr(backend._main, "call", count)
    return requests_of


def test_many_keys_are_listed_by_few_requests_whatever_the_form(backend, requests):
    names = [f"{number:05d}" for number in range(MANY)]
    put_all(backend, [f"d/{name}" for name in names])
    for recursive in (False, True):
        for limit, after, most in ((MANY, None, 40), (MANY, "d/00009", 40), (10, None, 8), (10, "d/02000", 8)):
            found, asked = requests(
                lambda recursive=recursive, limit=limit, after=after: backend.list(
                    "d", recursive=recursive, limit=limit, start_after=after
                )
            )
            first = 0 if after is None else int(after[2:]) + 1
            assert [entry.key for entry in found] == [f"d/{name}" for name in names[first : first + limit]]
            assert asked <= most, f"{asked} requests, recursive={recursive}, limit={limit}, start_after={after}"


def test_parents_that_are_no_keys_do_not_cost_a_request_each(backend, requests):
    put_all(backend, [f"d/p{number:04d}/k" for number in range(1_000)] + ["d/z"])
    found, asked = requests(lambda: backend.list("d", recursive=False, limit=1, start_after=None))
    assert [entry.key for entry in found] == ["d/z"]
    assert asked < 20
    found, asked = requests(lambda: backend.list("d", recursive=True, limit=1_000, start_after=None))
    assert len(found) == 1_000
    assert asked < 60


def test_any_part_of_a_subtree_is_that_part_of_the_whole(backend):
    dice = random.Random(5)
    segments = ["a", "a-b", "a.b", "a0", "b", "ab", "Z", "z~"]
    keys = {"/".join(dice.choices(segments, k=dice.randint(1, 5))) for _ in range(250)}
    put_all(backend, sorted(keys))
    for _ in range(150):
        prefix = dice.choice(["", "a", "a/b", "b"])
        after = dice.choice([None, dice.choice(sorted(keys)), "a/", "a0", "~"])
        limit = dice.choice([None, 1, 2, 7, 64, 65, 300])
        found = result(backend.list(prefix, recursive=True, limit=limit, start_after=after))
        whole = sorted(key for key in keys if not prefix or key.startswith(prefix + "/"))
        assert [entry.key for entry in found] == [key for key in whole if after is None or key > after][:limit]
        assert all(entry.value == entry.key.encode() for entry in found)


def test_many_of_the_longest_keys_are_read_though_no_request_has_room_for_them(backend):
    prefix = "/".join(["p" * 119] * 40)
    keys = [f"{prefix}/{number:0119d}" for number in range(400)]
    for key in keys:
        result(backend.commit([], [Put(key, b"v")]))
    absent = [f"{key}/x" for key in keys]
    assert [entry.key for entry in result(backend.get_many(keys))] == keys
    assert result(backend.get_many(absent)) == [None] * len(absent)
    for found in (
        backend.list(prefix, recursive=False, limit=None, start_after=None),
        backend.list(prefix, recursive=True, limit=None, start_after=None),
    ):
        assert [entry.key for entry in result(found)] == keys
    assert result(backend.children(prefix)) == [key.rpartition("/")[2] for key in keys]
    assert result(backend.delete_tree("")) == len(keys)
