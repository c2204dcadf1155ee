"""Connection URLs: from text to an open backend. The URL alone picks the backend.

    etcd://[user[:password]@]host:port[,host:port...][/root]?option=value&...      zk:// likewise
    sqlite:///relative.db?root=app     sqlite:////absolute.db?root=app
    memory://name[/root]
    postgresql://[user[:password]@]host[:port][,host...]/database[?root=app]

Nothing here touches the network, and no client library is imported before its backend is opened. Messages never echo
a part of a URL that may hold a password.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import quote, unquote

from latchwork.backends.base import Backend
from latchwork.backends.key_syntax import MAX_PREFIX_CHARS, MAX_PREFIX_SEGMENTS, describe_size, is_too_long
from latchwork.backends.schemes import (
    DURATIONS,
    SchemeSpec,
    Validator,
    file_mode,
    find_spec,
    known_schemes,
    load_backend_module,
    not_installed_error,
    one_of,
    readable_file,
)
from latchwork.clock import Clock
from latchwork.errors import BackendNotInstalled, InvalidURL

# What a package that adds a scheme imports from here.
__all__ = [
    "SchemeSpec",
    "StoreURL",
    "file_mode",
    "find_spec",
    "known_schemes",
    "one_of",
    "open_backend",
    "parse_url",
    "readable_file",
]

DEFAULT_ROOT = "latchwork"

#: The longest duration that may be asked for, eleven days: its milliseconds fit the 32 bits that ZooKeeper sends.
MAX_DURATION_S = 1_000_000.0

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SEGMENT = re.compile(r"[A-Za-z0-9._~%@:+=,-]{1,120}")
_LABEL = "[A-Za-z0-9_-]{1,63}"
_HOST = re.compile(
    rf"(\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>(?=[^:]{{1,253}}(:|$)){_LABEL}(\.{_LABEL})*\.?))(:(?P<port>[0-9]{{1,5}}))?"
)
_DATABASE = re.compile(r"[^/\x00-\x1f]{1,63}")
_OPTION = re.compile(r"[A-Za-z_]{1,40}")
_ESCAPES = "write / ? # @ & inside a user or password as %2F %3F %23 %40 %26"


@dataclass(frozen=True)
class StoreURL:
    """A parsed connection URL. Its repr and ``redacted()`` never show the password.

    Attributes:
        scheme: The canonical scheme: memory, sqlite, zk, etcd, postgresql, or one that another package added.
        hosts: The hosts and ports in the given order, without duplicates. Empty for embedded stores.
        user: The user, or None if the URL has none.
        password: The password from the URL, an override, or the file of ``password_file``.
        root: Segments joined by ``/``, without a leading slash.
        path: The file or the memory name of an embedded store, or the database on a server. Otherwise None.
        options: All other options, validated by the scheme.
        session_ttl_s: The requested TTL of the primary session in seconds.
        given_session_ttl_s: The TTL that the URL or an override contains, or None if it is the default.
        connect_timeout_s: Seconds after which connecting fails with ``ConnectFailed``.
        call_timeout_s: Seconds within which every call ends.
    """

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    user: str | None
    password: str | None = field(repr=False)
    root: str
    path: str | None
    options: Mapping[str, str] = field(hash=False)
    session_ttl_s: float = DURATIONS["session_ttl_s"]
    connect_timeout_s: float = DURATIONS["connect_timeout_s"]
    call_timeout_s: float = DURATIONS["call_timeout_s"]
    given_session_ttl_s: float | None = field(default=None, compare=False)

    def redacted(self) -> str:
        """Return the URL for logs and messages, without the password. Durations are shown if they differ from their
        defaults.
        """
        options = dict(self.options)
        options.update(
            (name, f"{getattr(self, name):g}") for name, usual in DURATIONS.items() if getattr(self, name) != usual
        )
        root = quote(self.root, safe="/~:+=,")
        location = find_spec(self.scheme).location
        if location == "file":
            place = "/" + quote(self.path or "")
            options = {"root": self.root, **options}
        elif location == "name":
            place = f"{quote(self.path or '')}/{root}"
        elif location == "database":
            database = quote(self.path or "", safe="")
            place = f"{_credentials(self.user, self.password)}{join_hosts(self.hosts)}/{database}"
            options = {"root": self.root, **options}
        else:
            place = f"{_credentials(self.user, self.password)}{join_hosts(self.hosts)}/{root}"
        query = "&".join(f"{name}={quote(value, safe='/~:+=,')}" for name, value in options.items())
        return f"{self.scheme}://{place}" + (f"?{query}" if query else "")


def parse_url(url: str, overrides: Mapping[str, object] | None = None) -> StoreURL:
    """Parse and validate a connection URL.

    Args:
        url: As described in the module docstring. User, password, root and option values may be percent-encoded.
        overrides: Options that override those of the URL, plus ``root``, ``user`` and ``password``. None means not
            given.
    Raises:
        InvalidURL: Unknown scheme or option, or malformed host, root or value. The message lists the known ones.
        BackendNotInstalled: The scheme belongs to another package that cannot be imported.
    """
    if not url.isascii() and any("\ud800" <= letter <= "\udfff" for letter in url):
        raise InvalidURL("a connection URL must be valid Unicode text, but this one contains a lone surrogate")
    match = _SCHEME.match(url)
    if match is None:
        raise InvalidURL(f"a connection URL starts with scheme://; known schemes are {', '.join(known_schemes())}")
    spec = find_spec(match.group(1))
    authority, path, query = _split(url[match.end() :])
    if spec.location in {"hosts", "database"} and "@" in path + query:
        raise InvalidURL(
            f"an '@' comes after the hosts; {_ESCAPES}, user:password@ before the hosts, and an '@' inside a root "
            "or an option as %40"
        )
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    own = {name: given.pop(name) for name in ("root", "user", "password") if name in given}
    written = _parse_query(query)
    options = {**{name: value for name, value in written if value}, **{name: str(given[name]) for name in given}}
    hosts, user, password, where, root = _parse_location(spec, authority, path, options)
    root = str(own["root"]).removeprefix("/") if "root" in own else root
    _refuse_repeated(name for name, _ in written)
    _refuse_unknown(spec, options)
    if "password" not in own and "password_file" in options:
        password = _password_from_file(options, password)
    options.pop("password_file", None)
    durations = {name: _seconds(name, options.pop(name)) for name in DURATIONS if name in options}
    for name, value in options.items():
        _validate(name, value, spec.options[name])
    return StoreURL(
        scheme=spec.schemes[0],
        hosts=hosts,
        user=_text(own.get("user", user)),
        password=_text(own.get("password", password)),
        root=_check_root(
            root, show="root" in own or spec.location in {"file", "name"} or "@" in authority or ":" not in authority
        ),
        path=where,
        options=options,
        given_session_ttl_s=durations.get("session_ttl_s"),
        **durations,
    )


def url_of_client(client: object) -> str:
    """Return the URL of the server to which a client of another library is connected.

    Raises:
        TypeError: The object is not a client of python-etcd3.
    """
    return cast("str", load_backend_module("etcd").url_of_client(client))


def open_backend(url: StoreURL, clock: Clock, client: object = None) -> Backend:
    """Connect to the server of a URL, or open its file, and return the backend. Blocks until connected.

    Args:
        url: The parsed URL.
        clock: The local clock.
        client: A connected client of another library whose connection is used, or None.
    Raises:
        BackendNotInstalled: The client library is missing. The message has the install command.
        ConnectFailed: No server answered within ``connect_timeout_s``.
        AuthenticationFailed: The server refused the account, if it verifies passwords.
    """
    spec = find_spec(url.scheme)
    try:
        opened_on = () if client is None else (client,)
        return cast("Backend", load_backend_module(url.scheme).open_backend(url, clock, *opened_on))
    except ImportError as error:
        if isinstance(error, BackendNotInstalled):
            raise
        raise not_installed_error(spec.schemes[0], spec.extra, error) from error


# Private.


def _split(rest: str) -> tuple[str, str, str]:
    """Split the text after ``scheme://`` into authority, path and query."""
    if "#" in rest:
        raise InvalidURL(f"a connection URL has no '#' part; {_ESCAPES}, and a '#' inside a name as %23")
    place, _, query = rest.partition("?")
    authority, slash, path = place.partition("/")
    return authority, slash + path, query


def _parse_query(query: str) -> list[tuple[str, str]]:
    """Return the names and values in a query, in order. An empty value counts as not given."""
    parts = (part.partition("=") for part in query.split("&") if part)
    return [(unquote(name), unquote(value)) for name, _, value in parts]


def _refuse_repeated(names: Iterable[str]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise InvalidURL(f"{_option_for_message(name)} is given twice; give it once")
        seen.add(name)


def _refuse_unknown(spec: SchemeSpec, options: Mapping[str, str]) -> None:
    for name in options:
        if name not in spec.known_options():
            raise InvalidURL(
                f"unknown {_option_for_message(name)} for {spec.schemes[0]}://; known options are "
                f"{', '.join(spec.known_options())}"
            )


def _option_for_message(name: str) -> str:
    """Return the name of an option as an error message may show it. A name that may contain a password is hidden."""
    return f"option {name!r}" if _OPTION.fullmatch(name) else f"option; {_ESCAPES}; the option"


_Place = tuple[tuple[tuple[str, int], ...], "str | None", "str | None", "str | None", str]


def _parse_location(spec: SchemeSpec, authority: str, path: str, options: dict[str, str]) -> _Place:
    """Return the hosts, user, password, path and root that a URL contains."""
    if spec.location == "file":
        return (), None, None, _file_path(spec, authority, path), options.pop("root", DEFAULT_ROOT).removeprefix("/")
    root = unquote(path[1:]) or DEFAULT_ROOT
    if spec.location == "name":
        return (), None, None, _memory_name(spec, authority), root
    user, password, hosts = _parse_authority(spec, authority)
    if spec.location == "database":
        own_root = options.pop("root", DEFAULT_ROOT).removeprefix("/")
        return hosts, user, password, _parse_database(spec, path), own_root
    return hosts, user, password, None, root


def _parse_database(spec: SchemeSpec, path: str) -> str:
    """Return the name of the database in the path of a URL.

    Raises:
        InvalidURL: The name is malformed. The message does not show it, because it may contain a part of a password.
    """
    name = unquote(path[1:])
    if not _DATABASE.fullmatch(name):
        raise InvalidURL(
            f"{spec.schemes[0]}:// needs a database of 1-63 characters after the hosts, without a slash: "
            f"{spec.schemes[0]}://user@host/database?root=app"
        )
    return name


def _file_path(spec: SchemeSpec, authority: str, path: str) -> str:
    scheme = spec.schemes[0]
    file = unquote(path[1:])
    if authority or not file or file.endswith("/"):
        raise InvalidURL(
            f"{scheme}:// needs a file after three slashes: {scheme}:///relative.db, or four: {scheme}:////absolute.db"
        )
    if file == ":memory:" or "\0" in file:
        raise InvalidURL(f"{scheme}:// needs a real file; write memory://name for a store in this process")
    return file


def _memory_name(spec: SchemeSpec, authority: str) -> str:
    name = unquote(authority)
    if not _SEGMENT.fullmatch(name):
        raise InvalidURL(
            f"{spec.schemes[0]}:// needs a name of 1-120 characters of A-Za-z0-9._-~%@:+=, and not {name!r}; "
            f"write {spec.schemes[0]}://name or {spec.schemes[0]}://name/root"
        )
    return name


def _parse_authority(spec: SchemeSpec, authority: str) -> tuple[str | None, str | None, tuple[tuple[str, int], ...]]:
    credentials, _, hosts = authority.rpartition("@")
    user, colon, password = credentials.partition(":")
    parsed = tuple(
        dict.fromkeys(_parse_host(spec, host, shown) for host, shown in _hosts_with_shown_text(authority, hosts))
    )
    return unquote(user) or None, unquote(password) if colon else None, parsed


def _hosts_with_shown_text(authority: str, hosts: str) -> Iterator[tuple[str, str]]:
    """Yield each host in an authority, with the text that an error message may show for it.

    Text after a colon is hidden, because it may be a password if the host was forgotten.
    """
    at = len(authority) - len(hosts)
    for host in hosts.split(","):
        yield host, "" if ":" in authority[:at] else f" {host.partition(':')[0]!r}"
        at += len(host) + 1


def _parse_host(spec: SchemeSpec, text: str, shown: str) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    usual = spec.default_port or 1234
    if match is None or not _is_address(match.group("v6")):
        raise InvalidURL(
            f"malformed host{shown} for {spec.schemes[0]}://; write host:port with a port of 1-65535, several joined "
            f"by commas, such as 127.0.0.1:{usual},[::1]:{usual}, and user:password@ before them; {_ESCAPES}"
        )
    port = int(match.group("port") or spec.default_port or 0)
    if not 1 <= port <= 65535:  # not shown: it may be a password whose host was forgotten
        raise InvalidURL(f"the port of host{shown} for {spec.schemes[0]}:// is not one of 1-65535; {usual} is usual")
    return match.group("v6") or match.group("name"), port


def _is_address(text: str | None) -> bool:
    """Return whether the text in brackets is an IPv6 address.

    Args:
        text: The text, or None if the host has no brackets. The result is then True.
    """
    try:
        return text is None or bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


def _check_root(root: str, *, show: bool) -> str:
    """Validate the root in a URL and return it.

    Args:
        root: The root.
        show: Whether an error message may show it. It must not if it may contain a part of a password.
    """
    segments = root.split("/")
    if any(not _SEGMENT.fullmatch(part) or part in {".", ".."} or part.startswith("@") for part in segments):
        what = f"malformed root {root!r}" if show else "malformed root"
        raise InvalidURL(
            f"{what}; write segments of 1-120 characters of A-Za-z0-9._-~%@:+=, joined by single "
            "slashes, none of them . or .., and none starting with @"
        )
    if is_too_long(root, MAX_PREFIX_CHARS, MAX_PREFIX_SEGMENTS):
        raise InvalidURL(f"the root of the URL {describe_size(root, MAX_PREFIX_CHARS, MAX_PREFIX_SEGMENTS)}")
    return root


def _password_from_file(options: Mapping[str, str], password: str | None) -> str:
    if password is not None:
        raise InvalidURL("the URL has a password and a password_file; give one of them")
    path = options["password_file"]
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text, or not a valid file name"
        raise InvalidURL(f"password_file {path!r} cannot be read: {reason}; name a readable text file") from error


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_DURATION_S:
        raise InvalidURL(
            f"{name}={text!r} is not a valid duration; give seconds greater than 0 and at most "
            f"{MAX_DURATION_S:,.0f}, such as {name}={DURATIONS[name]:g}"
        )
    return value


def _validate(name: str, value: str, validator: Validator) -> None:
    try:
        validator(value)
    except ValueError as error:
        raise InvalidURL(f"option {name}={value!r} {error}") from error


def _credentials(user: str | None, password: str | None) -> str:
    if user is None and password is None:
        return ""
    return quote(user or "", safe="") + (":***@" if password is not None else "@")


def join_hosts(hosts: Iterable[tuple[str, int]]) -> str:
    """Join hosts and ports with commas, in the syntax of a URL."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
