"""Connection URLs: every form of the contract, every mistake named, no password shown."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from latchwork.backends import schemes
from latchwork.backends.capabilities import Capabilities
from latchwork.backends.url import SchemeSpec, StoreURL, known_schemes, one_of, open_backend, parse_url, readable_file
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import BackendNotInstalled, InvalidURL


class FakeEntryPoint:
    def __init__(self, name, load):
        self.name = name
        self.load = load


@pytest.fixture
def remote(monkeypatch):
    """A scheme of another package, with hosts, so that no client library is needed here."""
    module = ModuleType("remote_backend")
    module.SPEC = SchemeSpec(
        schemes=("remote", "rem"),
        capabilities=Capabilities("remote"),
        default_port=99,
        options={"mode": one_of("a", "b")},
        extra="etcd",
    )
    points = [FakeEntryPoint("remote", lambda: module), FakeEntryPoint("rem", lambda: module)]

    def entry_points(*, group, name=None):
        assert group == "latchwork.backends"
        return [point for point in points if name in {None, point.name}]

    monkeypatch.setattr(schemes, "entry_points", entry_points)
    module.points = points
    return module


def message_of(url, overrides=None):
    with pytest.raises(InvalidURL) as caught:
        parse_url(url, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_memory_url_has_a_name_and_a_root():
    parsed = parse_url("memory://trial/app/one")
    assert (parsed.scheme, parsed.path, parsed.root, parsed.hosts) == ("memory", "trial", "app/one", ())


def test_root_defaults_to_latchwork():
    assert parse_url("memory://trial").root == "latchwork"
    assert parse_url("memory://trial/").root == "latchwork"
    assert parse_url("sqlite:///a.db").root == "latchwork"


def test_three_slashes_are_relative_and_four_absolute():
    assert parse_url("sqlite:///dir/a.db?root=app").path == "dir/a.db"
    assert parse_url("sqlite:////dir/a%20b.db").path == "/dir/a b.db"


def test_sqlite_root_and_sync_come_from_options():
    parsed = parse_url("sqlite:///a.db?root=app/x&sync=full")
    assert parsed.root == "app/x"
    assert parsed.options == {"sync": "full"}


def test_durations_are_parsed_and_have_defaults():
    parsed = parse_url("memory://t?session_ttl_s=2.5")
    assert (parsed.session_ttl_s, parsed.connect_timeout_s, parsed.call_timeout_s) == (2.5, 5.0, 10.0)


def test_overrides_win_and_none_means_not_given():
    parsed = parse_url(
        "sqlite:///a.db?sync=normal&session_ttl_s=3", {"sync": "full", "session_ttl_s": None, "root": "r"}
    )
    assert (parsed.options["sync"], parsed.session_ttl_s, parsed.root) == ("full", 3.0, "r")


def test_empty_option_counts_as_not_given():
    assert parse_url("sqlite:///a.db?sync=&root=").options == {}


def test_hosts_users_and_passwords(remote):
    parsed = parse_url("remote://us%40er:p%2Fw@h1:1,[::1]:2,h3,h1:1/app?mode=a")
    assert parsed.hosts == (("h1", 1), ("::1", 2), ("h3", 99))
    assert (parsed.user, parsed.password, parsed.root, parsed.options) == ("us@er", "p/w", "app", {"mode": "a"})


def test_alias_becomes_the_canonical_scheme(remote):
    assert parse_url("REM://h").scheme == "remote"


def test_password_file_gives_the_password_without_its_line_end(remote, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hush hush\n")
    parsed = parse_url(f"remote://me@h/app?password_file={secret}")
    assert parsed.password == "hush hush"
    assert "password_file" not in parsed.options


def test_password_and_password_file_together_are_refused(remote, tmp_path):
    assert "one of them" in message_of(f"remote://me:pw@h?password_file={tmp_path}/x")


def test_missing_password_file_is_named(remote, tmp_path):
    assert "nowhere" in message_of(f"remote://me@h?password_file={tmp_path}/nowhere")


def test_password_shows_neither_in_repr_nor_in_redacted(remote):
    parsed = parse_url("remote://me:hush@h:1/app?mode=b&session_ttl_s=2")
    assert "hush" not in repr(parsed)
    assert parsed.redacted() == "remote://me:***@h:1/app?mode=b&session_ttl_s=2"


@pytest.mark.parametrize(
    "url",
    [
        "remote://me:hush/hush@h:1/app",
        "remote://me:1/hush@h:1/app",
        "remote://me:hush?hush@h:1/app",
        "remote://me:hush#hush@h:1/app",
        "remote://me:hush",
        "remote://me:hush@h:port",
        "remote://me:my?hush==@h:1/app",
        "remote://me:my?hush=x@h:1/app",
        "remote://me:my?hush&hush@h:1/app",
        "remote://me:p@ss?hush@h:1/app",
        "remote://me:p@ss/hush@h:1/app",
        "remote://me:p@1/hush@h:1/app",
        "remote://me:1?hush%21=1",
        "remote://me:1/hush!",
        "remote://me:1,hush!/app",
        "remote://me:@hush /app",
        "remote://me:hush@h:1/a//b",
        "remote://me:hush@h:1/a?nope=1",
        "remote://me:hush@h:1/a?mode=c",
        "nope://me:hush@h",
        "me:hush@h",
    ],
)
def test_no_error_shows_a_password(remote, url):
    assert "hush" not in message_of(url)


@pytest.mark.parametrize(
    "url",
    [
        "remote://me:my?hush==@h:1/app",
        "remote://me:my?a&a@h:1/app",
        "remote://me:p@ss/hush@h:1/app",
        "remote://me:p@ss?hush@h:1/app",
        "remote://me:hush#hush@h:1/app",
        "remote://me:123456/app",
    ],
)
def test_a_password_that_is_not_percent_encoded_is_one_error_that_says_how_to_write_it(remote, url):
    said = message_of(url)
    assert "%2F" in said
    assert "123456" not in said


def test_redacted_url_parses_to_the_same_place(remote):
    for text in (
        "memory://a/b/c?call_timeout_s=3",
        "sqlite:///dir/a%20b.db?root=x/y&sync=full&session_ttl_s=2",
        "sqlite:////abs/a.db?root=latchwork",
        "remote://h:1,[::1]:2/a%40b?mode=a",
    ):
        parsed = parse_url(text)
        assert parse_url(parsed.redacted()) == parsed


def test_unknown_scheme_lists_the_known_ones(remote):
    text = message_of("mysql://h")
    assert "'mysql'" in text
    for scheme in ("etcd", "memory", "sqlite", "zk", "zookeeper", "remote"):
        assert scheme in text


def test_unknown_option_lists_the_known_ones():
    text = message_of("sqlite:///a.db?snyc=full")
    assert "'snyc'" in text
    for option in ("sync", "root", "session_ttl_s", "connect_timeout_s", "call_timeout_s"):
        assert option in text


def test_unknown_override_is_refused():
    assert "'colour'" in message_of("memory://a", {"colour": 1})


def test_wrong_option_value_says_what_is_right():
    assert "normal or full" in message_of("sqlite:///a.db?sync=maybe")


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "1000001", "1e10", "1e300"])
def test_senseless_duration_is_refused(value):
    assert "seconds" in message_of(f"memory://a?session_ttl_s={value}")


MALFORMED = [
    "",
    "h:x",
    "h:1,",
    "h h",
    "[::1",
    "h:1:2",
    "http://h",
    "a..b",
    ".a",
    "-" * 64,
    "a." * 127,
]


@pytest.mark.parametrize("hosts", [*MALFORMED, "[1:2:3]", "[.]"])
def test_malformed_host_is_refused_with_an_example(remote, hosts):
    assert "127.0.0.1:99" in message_of(f"remote://{hosts}")


@pytest.mark.parametrize("hosts", ["h", "h.", "my_host:1", "a-b.c", "x" * 63, ".".join(["a" * 61] * 4), "[1::2]:3"])
def test_any_name_that_dns_can_hold_and_any_address_is_a_host(remote, hosts):
    assert len(parse_url(f"remote://{hosts}").hosts) == 1


@pytest.mark.parametrize("name", ["%00", "a" * 5000, "%F0%9F%A6%80", "/"])
@pytest.mark.parametrize("option", ["password_file", "tls"])
def test_a_file_that_no_file_system_can_name_is_refused(remote, monkeypatch, option, name):
    monkeypatch.setitem(remote.SPEC.options, "tls", readable_file)
    assert option in message_of(f"remote://h?{option}={name}")


@pytest.mark.parametrize("root", ["a//b", "a/", "/a", ".", "a/../b", "@own", "a b", "x" * 121, "ü"])
def test_malformed_root_is_refused(root):
    assert "malformed root" in message_of(f"memory://a/{root}")


@pytest.mark.parametrize("url", ["sqlite://a.db", "sqlite:///", "sqlite://", "sqlite:///dir/", "sqlite:///:memory:"])
def test_sqlite_without_a_file_is_refused(url):
    assert "sqlite://" in message_of(url)


def test_memory_without_a_name_is_refused():
    assert "memory://name" in message_of("memory://")


def test_option_given_twice_is_refused():
    assert "twice" in message_of("sqlite:///a.db?sync=full&sync=normal")


def test_missing_client_library_names_the_install_line(remote):
    def open_it(url, clock):
        import no_such_client_library  # noqa: F401

    remote.open_backend = open_it
    with pytest.raises(BackendNotInstalled, match=r'pip install "latchwork\[etcd\]"'):
        open_backend(parse_url("remote://h"), SYSTEM_CLOCK)


def test_added_scheme_whose_package_is_broken_is_not_installed(remote):
    def load():
        raise ImportError("no module named gone")

    remote.points.append(FakeEntryPoint("broken", load))
    with pytest.raises(BackendNotInstalled, match="broken://"):
        parse_url("broken://h")
    assert "broken" in known_schemes()


def test_added_scheme_opens_its_own_backend(remote):
    seen = []
    remote.open_backend = lambda url, clock: seen.append((url, clock)) or "the backend"
    parsed = parse_url("rem://h/app")
    assert open_backend(parsed, SYSTEM_CLOCK) == "the backend"
    assert seen == [(parsed, SYSTEM_CLOCK)]


def test_parsing_imports_no_client_library():
    before = set(sys.modules)
    parse_url("memory://a")
    parse_url("sqlite:///a.db")
    assert not {"kazoo", "etcd3", "grpc"} & (set(sys.modules) - before)


def test_store_url_is_a_value():
    assert parse_url("memory://a/b") == StoreURL("memory", (), None, None, "b", "a", {})
    assert hash(parse_url("memory://a/b")) == hash(parse_url("memory://a/b"))


@pytest.mark.parametrize("root", ["/".join(["r" * 100] * 4), "/".join("r" * 13)])
def test_a_root_that_leaves_no_room_is_refused(root):
    with pytest.raises(InvalidURL, match=r"the root of the URL has .* may have 400 and 12; use a shorter one"):
        parse_url(f"memory://trial/{root}")


@pytest.mark.parametrize("text", ["zk://me:secret@h:99999/x", "etcd://h:0"])
def test_a_port_that_there_cannot_be_is_said_to_be_the_trouble(text):
    with pytest.raises(InvalidURL, match=r"the port of host( 'h')? for \w+:// is not one of 1-65535; \d+ is usual"):
        parse_url(text)
