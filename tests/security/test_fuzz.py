"""Whatever is given as a URL, a key or a value: what comes out is an answer or one of our errors."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import closing, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import latchwork
from latchwork import (
    ConnectFailed,
    InvalidKey,
    InvalidURL,
    LatchworkError,
    Put,
    WaitTimeout,
)
from latchwork.backends.url import parse_url
from latchwork.primitives import Lock
from levels import LONG

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


@settings(max_examples=1500 if LONG else 300, deadline=None)
@given(
    st.sampled_from(["zk", "etcd"]),
    st.lists(st.sampled_from([*"/:@?#&=%,![] \0", "%2F", "1", "user", "?acl=", "&a=b"]), max_size=5).map("".join),
    st.sampled_from(["", "%", "=", "==", "&", "&HUSH", "?", "/", "@", "#", " ", ":1"]),
    st.sampled_from(
        ["@127.0.0.1:1/root", "/root", "@/root", "@a..b", "@h:1,h:1:1/x?nope=1", "", "@h?acl=open", "@h/@"]
    ),
)
def test_no_error_shows_a_password_however_it_is_written(scheme, before, after, rest):
    text = f"{scheme}://app:{before}HUSH{after}{rest}"
    before_password, _, after_password = text.partition("HUSH")
    if "@" in before_password and "@" not in after_password:
        return  # a host or a root, for all that anybody can tell: both are shown
    if re.search(r"//app:\d+/?[^@]*\?[^@]*$", text):
        return  # a host, its port and options, for all that anybody can tell: names of options are shown
    try:
        parsed = parse_url(text)
        shown = parsed.redacted() if "@" in rest else ""  # else it may be a name or a port, which are shown
    except LatchworkError as error:
        shown = str(error)
    assert "HUSH" not in shown


durations = st.one_of(
    st.floats(), st.floats(1e-3, 1e7), st.integers(-1, 10**300), st.sampled_from([1e10, 1e300, 2.0**63, 9223372036.0])
)
DURATIONS = ["session_ttl_s", "call_timeout_s"]


@settings(max_examples=150 if LONG else 40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scheme=st.sampled_from(["memory", "sqlite"]), options=st.dictionaries(st.sampled_from(DURATIONS), durations))
def test_any_times_of_an_embedded_store_are_kept_or_refused(tmp_path, scheme, options):
    url = "memory://times" if scheme == "memory" else f"sqlite:///{tmp_path}/times.db"
    try:
        store = latchwork.connect(url, **options)
    except LatchworkError as error:
        assert "seconds" in str(error)  # noqa: PT017 - either is right
        return
    with store, suppress(LatchworkError):  # of a time too short to do anything in
        assert store.put("k", b"v") == store.get("k")
        assert store.session.ttl_s > 0


hosts = st.lists(
    st.one_of(
        st.sampled_from(["127.0.0.1", "[::1]", "a..b", "a" * 70, ".", "a.", "1.2.3", "256.1.1.1", "[1:2:3]", "[::z]"]),
        st.text("ab.-_[:]1", min_size=1, max_size=8),
    ).map(lambda host: f"{host}:1"),
    min_size=1,
    max_size=3,
).map(",".join)


@pytest.fixture
def no_names(monkeypatch):
    """No name leads anywhere, but what Python refuses to ask for is refused as ever."""

    def look_up(host, port, *_, **__):
        host.encode("idna")
        if host in {"127.0.0.1", "::1"}:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        raise socket.gaierror(socket.EAI_NONAME, "no names in this test")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@settings(max_examples=60 if LONG else 12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scheme=st.sampled_from(["zk", "etcd"]), hosts=hosts)
def test_any_hosts_at_which_nobody_is_are_a_connection_that_failed_or_no_url(no_names, scheme, hosts):
    with pytest.raises((InvalidURL, ConnectFailed)):
        latchwork.connect(f"{scheme}://{hosts}/x", connect_timeout_s=0.1)


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


def answered(call):
    """Whether a call was answered; else it was a wait that was over, or a time that makes no sense."""
    try:
        call()
    except (WaitTimeout, ValueError):
        return False
    return True


@settings(max_examples=200 if LONG else 60, deadline=None)
@given(durations)
def test_any_time_to_wait_is_waited_or_refused(memory, timeout_s):
    with memory.watch("waits") as watch, memory.mirror("waits") as mirror:
        before = memory.put("waits", b"0").version
        mirror.wait_until(lambda seen: "waits" in seen and seen["waits"].version == before, 5)
        watch.next(5)
        later = threading.Timer(0.01, lambda: memory.put("waits", b"1"))
        later.start()
        answered(lambda: watch.next(timeout_s))
        answered(lambda: mirror.wait_until(lambda seen: seen["waits"].version != before, timeout_s=timeout_s))
        later.join()


@settings(max_examples=200 if LONG else 30, deadline=None)
@given(durations)
def test_any_time_to_wait_for_a_lock_is_waited_or_refused(memory, timeout_s):
    holder, waiter = (memory.open_session(5) for _ in range(2))
    with closing(waiter), closing(holder), closing(Lock(memory, "waits-lock", session=waiter)) as lock:
        Lock(memory, "waits-lock", session=holder).acquire(timeout_s=5)
        later = threading.Timer(0.01, holder.close)
        later.start()
        answered(lambda: lock.acquire(timeout_s=timeout_s))
        later.join()


@settings(max_examples=60 if LONG else 20, deadline=None)
@given(durations)
def test_any_ttl_is_one_that_a_session_lives_by_or_refused(memory, ttl_s):
    try:
        session = memory.open_session(ttl_s)
    except ValueError as error:
        assert "ttl_s" in str(error)  # noqa: PT017 - either is right
        return
    assert session.ttl_s >= ttl_s
    session.close()


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
