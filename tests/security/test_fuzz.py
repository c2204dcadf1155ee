"""Whatever is given as a URL, a key or a value: what comes out is an answer or one of our errors."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import latchwork
from latchwork import InvalidKey, LatchworkError, Put
from latchwork.backends.url import parse_url
from security.conftest import LONG

SCHEMES = ["zk", "etcd", "sqlite", "memory", "ZK", "http", "", "zk+etcd", "é"]
pieces = st.one_of(
    st.sampled_from(
        [*"/:@?#&=%,[].~\\ \0\n\udc80", "//", "://", "%2F", "%00", "%zz", "..", "127.0.0.1", "[::1]", ":2379",
         ":0", ":9e9", "user:pass@", "?tls_ca=", "&call_timeout_s=", "call_timeout_s=nan", "-1", "inf", "root",
         "password_file=", "🦀"]
    ),
    st.text(max_size=8),
)  # fmt: skip
urls = st.one_of(
    st.text(max_size=60),
    st.builds(
        lambda scheme, rest: f"{scheme}://{''.join(rest)}", st.sampled_from(SCHEMES), st.lists(pieces, max_size=8)
    ),
)
keys = st.one_of(st.text(max_size=40), st.lists(pieces, max_size=6).map("".join), st.text("ab/", max_size=300))


@settings(max_examples=1500 if LONG else 300, deadline=None)
@given(urls)
def test_any_text_is_a_url_or_refused_as_one(text):
    said = ""
    try:
        parsed = parse_url(text)
    except LatchworkError as error:
        said = str(error)
    else:
        assert parsed.password is not None or parse_url(parsed.redacted()) == parsed
        return
    assert said
    assert "\n" not in said


@pytest.fixture(scope="module")
def memory():
    with latchwork.connect("memory://fuzz") as store:
        yield store


@settings(max_examples=600 if LONG else 200, deadline=None)
@given(keys, st.binary(max_size=64))
def test_any_text_is_a_key_that_keeps_its_value_or_refused_by_every_call(memory, key, value):
    calls = [
        lambda: memory.put(key, value),
        lambda: memory.get(key),
        lambda: memory.create(key, value),
        lambda: memory.delete(key),
        lambda: memory.commit([], [Put(key, value)]),
        lambda: memory.get_many([key])[0],
    ]
    try:
        memory.delete(key)
    except InvalidKey:
        for call in calls:
            with pytest.raises(InvalidKey):
                call()
        return
    assert memory.put(key, value).value == value
    assert memory.get(key).value == value
    assert [entry.key for entry in memory.list(key.rpartition("/")[0])] == [key]
    assert memory.delete(key)


@pytest.mark.parametrize("value", ["text", 5, None, ["a"], {"a": 1}])
def test_a_value_that_is_no_bytes_is_refused_by_every_call(store, value):
    for call in (
        lambda: store.put("k", value),
        lambda: store.create("k", value),
        lambda: store.commit([], [Put("k", value)]),
    ):
        with pytest.raises((TypeError, LatchworkError), match="bytes"):
            call()
    assert store.get("k") is None


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.text("abé日%~ +:=@._-", min_size=1, max_size=40), value=st.binary(max_size=2000))
def test_keys_and_values_that_are_allowed_come_back_as_they_were_from_every_backend(store, key, value):
    try:
        written = store.put(f"f/{key}", value)
    except InvalidKey:
        return
    assert (written.key, written.value) == (f"f/{key}", value)
    assert store.get(f"f/{key}") == written
    assert [entry for entry in store.list("f") if entry.key == written.key] == [written]
    assert store.delete(f"f/{key}")
