"""`latchwork doctor`: check an installation and a store, and say what to fix."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import re
import resource
import shutil
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import latchwork
from latchwork._base.text import reason
from latchwork.backends.base import DescribesServer, ServerInfo
from latchwork.backends.schemes import find_spec, installed_specs
from latchwork.backends.url import StoreURL, open_backend, parse_url
from latchwork.cli.cluster import open_store
from latchwork.cli.options import Json, Url, command
from latchwork.cli.outcome import FAILURE, OK
from latchwork.cli.text import Grid, say, say_json, show
from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import LatchworkError, PermissionDenied
from latchwork.store import Store

#: Versions of Python that the tests run on.
_PYTHONS = ((3, 11), (3, 14))
#: A node with a few hundred items, or an executor with process tasks, needs about this many descriptors.
_LEAST_FILES = 1024
#: A round trip above this is slow for locks and queues.
_SLOW_S = 0.1
_SAMPLES = 10
#: A wall clock that differs by more starts cron schedules too early or too late.
_MOST_SKEW_S = 1.0
_LEAST_DISK_BYTES = 500_000_000
_WATCH_TIMEOUT_S = 5.0
_EXTRA = re.compile(r"""extra == ['"](?P<extra>[\w-]+)['"]""")

Verdict = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: The name of the check.
        verdict: ``problem`` if something does not work, ``warning`` if it works and may not for long.
        detail: What was found.
        remedy: What to do; "" if nothing.
    """

    check: str
    verdict: Verdict
    detail: str
    remedy: str = ""


@command(
    "latchwork doctor", "latchwork doctor --url etcd://10.0.0.1:2379/app", "latchwork doctor --json | jq '.findings'"
)
def doctor(*, url: Url = None, as_json: Json = False) -> None:
    """Check this installation, and with --url a store: versions, extras, limits, reachability and permissions.

    With --url it writes one key below ``doctor/`` and removes it again. The exit code is 1 if there is a problem.
    """
    findings = [check_python(), *check_distributions(), check_core(), *check_extras(), check_file_limit()]
    if url:
        findings += check_store(url)
    if as_json:
        say_json({"findings": [asdict(each) for each in findings]})
    else:
        show(Grid(_format_row(each) for each in findings))
        if not url:
            say("add --url URL to check a store as well")
    if any(each.verdict == "problem" for each in findings):
        sys.exit(FAILURE)
    sys.exit(OK)


def check_python() -> Finding:
    """Check the version of Python."""
    version = sys.version.partition(" ")[0]
    least, newest = _PYTHONS
    if sys.version_info[:2] > newest:
        return Finding("python", "warning", version, f"tested up to {newest[0]}.{newest[1]}; use that in production")
    return Finding("python", "ok", f"{version}, needs {least[0]}.{least[1]} or newer")


def check_distributions() -> list[Finding]:
    """Check that all installed distributions of latchwork have the same version."""
    own = latchwork.__version__
    found = [Finding("latchwork", "ok", own)]
    for name in ("latchwork-workflows", "latchwork-testkit"):
        version = _get_version(name)
        if version is not None and version != own:
            found.append(Finding(name, "problem", version, f"pip install {name}=={own}"))
        elif version is not None:
            found.append(Finding(name, "ok", version))
    return found


def check_core() -> Finding:
    """Check that the native core can be loaded."""
    try:
        importlib.import_module("latchwork._core")
    except ImportError as error:
        return Finding("native core", "problem", reason(error), "pip install --force-reinstall latchwork")
    return Finding("native core", "ok", "loaded")


def check_extras() -> list[Finding]:
    """Check for each backend whether its client library is installed."""
    found = []
    for scheme, spec in installed_specs().items():
        if isinstance(spec, str):
            found.append(Finding(f"backend {scheme}", "problem", spec, "update or uninstall the package that adds it"))
        elif spec.extra is not None:
            found.append(_check_extra(scheme, spec.extra))
    return found


def check_file_limit() -> Finding:
    """Check the maximum number of open files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _LEAST_FILES:
        return Finding(
            "open files", "warning", f"at most {soft}", f"ulimit -n {_LEAST_FILES} (the hard limit is {hard})"
        )
    return Finding("open files", "ok", "no limit" if soft < 0 else f"at most {soft}")


def check_store(url: str) -> list[Finding]:
    """Check that a store can be reached, read, written and watched. The findings include the version and warnings of
    its server.

    Args:
        url: URL of the store.
    """
    found: list[Finding] = []
    with _collect_warnings() as warnings:
        began = time.monotonic()
        try:
            opened = open_store(url, of_cluster=False)
        except LatchworkError as error:
            return [_create_failure("connect", error)]
        with opened:
            found.append(Finding("connect", "ok", f"{opened.url} in {_format_ms(time.monotonic() - began)}"))
            for name, check in (("read", _check_read), ("session", _check_session), ("write and watch", _check_write)):
                try:
                    found.append(check(opened))
                except LatchworkError as error:
                    found.append(_create_failure(name, error))
        parsed = parse_url(url)
        found += _check_server(parsed)
    spec = find_spec(parsed.scheme)
    if spec.location == "file" and parsed.path:
        found.append(_check_disk(Path(parsed.path)))
    if not spec.capabilities.multi_host:
        shared = "processes of one machine" if spec.capabilities.multi_process else "one process"
        found.append(Finding("shared by", "ok", shared))
    return found + [
        Finding("server", "warning", text, "see the page about operations") for text in dict.fromkeys(warnings)
    ]


def _create_failure(check: str, error: LatchworkError) -> Finding:
    remedy = ""
    if isinstance(error, PermissionDenied):
        remedy = "give the account the rights that the page about TLS and accounts lists"
    return Finding(check, "problem", reason(error), remedy)


def _check_server(url: StoreURL) -> list[Finding]:
    """Check the version, the limits and the clock of a store's server, over a separate connection."""
    try:
        backend = open_backend(url, SYSTEM_CLOCK)
        try:
            if not isinstance(backend, DescribesServer):
                return []
            began_s = time.time()
            info = backend.server_info()
            ended_s = time.time()
        finally:
            backend.close()
    except LatchworkError as error:
        return [Finding("server version", "warning", reason(error), "let the account ask, or check the server itself")]
    found = [_check_server_version(info)]
    if info.usage:
        found.append(Finding("server limits", "warning" if info.remedy else "ok", info.usage, info.remedy))
    if info.wall_clock_s is not None:
        found.append(_compare_clocks(info.wall_clock_s, began_s, ended_s))
    return found


def _check_server_version(info: ServerInfo) -> Finding:
    if not info.version:
        return Finding("server version", "ok", "the server does not say")
    if _parse_version(info.version) < _parse_version(info.least_version):
        remedy = f"upgrade to {info.least_version} or newer"
        return Finding("server version", "problem", f"{info.version} is not supported", remedy)
    return Finding("server version", "ok", info.version)


def _compare_clocks(server_s: float, began_s: float, ended_s: float) -> Finding:
    """Compare the clock of the server with the clock of this machine.

    Args:
        server_s: The server's time.
        began_s: The local time before the server's time was read.
        ended_s: The local time after it was read.
    """
    skew_s = server_s - (began_s + ended_s) / 2
    detail = (
        f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} ours, within {(ended_s - began_s) / 2:.1g} s"
    )
    if abs(skew_s) - (ended_s - began_s) / 2 > _MOST_SKEW_S:
        remedy = "synchronize both clocks by NTP: cron schedules start by the clock of their node"
        return Finding("server clock", "warning", detail, remedy)
    return Finding("server clock", "ok", detail)


def _check_disk(path: Path) -> Finding:
    """Check the free space on the disk that contains the file of a store."""
    free = shutil.disk_usage(path.absolute().parent).free
    detail = f"{free / 1e9:,.1f} GB free"
    if free < _LEAST_DISK_BYTES:
        return Finding("disk", "warning", detail, "free some space: while the disk is full, writes fail")
    return Finding("disk", "ok", detail)


def _check_read(opened: Store) -> Finding:
    times = []
    for _ in range(_SAMPLES):
        began = time.monotonic()
        opened.get("doctor/none")
        times.append(time.monotonic() - began)
    median_s = statistics.median(times)
    if median_s > _SLOW_S:
        remedy = "locks and queues take several round trips; raise session_ttl_s and use a nearer server"
        return Finding("read", "warning", f"round trip {_format_ms(median_s)}", remedy)
    return Finding("read", "ok", f"round trip {_format_ms(median_s)} (median of {_SAMPLES})")


def _check_session(opened: Store) -> Finding:
    session = opened.session
    return Finding("session", "ok", f"TTL {session.ttl_s:g} s")


def _check_write(opened: Store) -> Finding:
    key, seen = f"doctor/{uuid.uuid4().hex}", threading.Event()
    with opened.watch(key) as watch:
        watch.next(timeout_s=_WATCH_TIMEOUT_S)
        watch.subscribe(lambda _batch: seen.set())
        began = time.monotonic()
        try:
            opened.create(key, b"", session=opened.session)
            took_s = time.monotonic() - began
            was_seen = seen.wait(_WATCH_TIMEOUT_S)
            seen_s = time.monotonic() - began
        finally:
            opened.delete(key)
    if not was_seen:
        remedy = "a proxy may hold back the server's events; connect without it"
        return Finding("write and watch", "problem", f"no event within {_WATCH_TIMEOUT_S:g} s of a write", remedy)
    return Finding(
        "write and watch", "ok", f"written in {_format_ms(took_s)}, seen by a watch after {_format_ms(seen_s)}"
    )


def _check_extra(scheme: str, extra: str) -> Finding:
    libraries = _find_libraries(extra)
    missing = [name for name, version in libraries.items() if version is None]
    if missing:
        return Finding(
            f"backend {scheme}",
            "ok",
            f"not installed: {', '.join(missing)}",
            f'pip install "latchwork[{extra}]" to use it',
        )
    return Finding(f"backend {scheme}", "ok", ", ".join(f"{name} {version}" for name, version in libraries.items()))


def _find_libraries(extra: str) -> dict[str, str | None]:
    """Find the distributions that an extra requires.

    Args:
        extra: Name of the extra.
    Returns:
        The installed version by name; None if the distribution is not installed.
    """
    found = {}
    for line in importlib.metadata.requires("latchwork") or ():
        needed = _EXTRA.search(line)
        if needed is not None and needed["extra"] == extra:
            name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
            found[name] = _get_version(name)
    return found


def _get_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextmanager
def _collect_warnings() -> Iterator[list[str]]:
    """Return a context manager that collects the warnings which the library logs in a list."""
    texts: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    log, collector = logging.getLogger("latchwork"), Collector(logging.WARNING)
    log.addHandler(collector)
    try:
        yield texts
    finally:
        log.removeHandler(collector)


def _format_row(each: Finding) -> dict[str, str]:
    return {"check": each.check, "": each.verdict, "found": each.detail, "what to do": each.remedy}


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _format_ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
