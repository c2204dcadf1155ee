"""Which tests a run has: by their ids, by the day, and by what SERVERS says. Nothing here looks at a machine.

`make test` runs a test file in memory and on one more backend, whose turn it is: that follows from the file's name and
the date, and every file meets every one of them within as many days as there are to take turns. Some folders run on
every backend every day. Of the plays, which are samples of long forms, and of the slow tests each day has a share, and
of the contract on backends that differ from another one in little.

SERVERS says otherwise: names of backends (``etcd35,zookeeper``), ``all``, or a date, whose turns are repeated.
`make check` runs with ``all``.

The contract and the primitives, also under faults, have two drivers, threads and an event loop. `make test` runs each
of their files through the one whose turn it is, the other one the next day, and when the turns of the servers begin
again the same one twice: so each file meets every one of them through both. DRIVER says otherwise: ``thread``,
``loop``, ``both``, a date.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from zlib import crc32

from backends_table import BACKENDS, BY_NAME, When

#: Whether this run has the long form of tests that are done for as long as one likes; `make check WHAT=tests` has.
LONG = bool(os.environ.get("LATCHWORK_LONG_TESTS"))
#: Run on every backend every day: the contract, what belongs to one server, and signals.
CONTRACT = "conformance/"
EVERY_DAY = (CONTRACT, "backends/", "trials/interrupts/test_signals.py")
#: Samples of long forms: each play is in a run on one day in so many.
PLAYS = {"trials/contract/": 5, "trials/primitives/": 5}
#: Each slow test is in a run on one day in so many; so is each file of the contract, on a backend that is `When.OWN`.
#: It shares no factor with the number of backends that take turns: a slow test meets each of them.
SHARE = 3
#: What runs a part of itself only, which may change: nobody may rely on one test of it.
SAMPLES = (*PLAYS, "trials/history/", "trials/storms/", "trials/interrupts/", "model/")
#: Folders whose tests any driver of protocols can run, and the drivers.
DRIVEN = ("conformance/", "primitives/", "trials/primitives/", "trials/schedules/")
DRIVERS = ("thread", "loop")
#: The backends that take turns.
TURNS = tuple(backend.name for backend in BACKENDS if backend.when is When.IN_TURN)
_ALWAYS = frozenset(backend.name for backend in BACKENDS if backend.when is When.ALWAYS)
_OWN = frozenset(backend.name for backend in BACKENDS if backend.when is When.OWN)
_ON_REQUEST = frozenset(backend.name for backend in BACKENDS if backend.when is When.ON_REQUEST)


@dataclass(frozen=True)
class Choice:
    """What SERVERS says.

    Attributes:
        day: whose turns these are; None when servers are named.
        servers: the names; empty when it is a day.
    """

    day: dt.date | None
    servers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, text: str, today: dt.date) -> Choice:
        """Read SERVERS; an empty text is today.

        Raises:
            ValueError: it is no date and names something that is no backend.
        """
        text = text.strip()
        if not text:
            return cls(today)
        if text == "all":
            return cls(None, frozenset(BY_NAME))
        names = frozenset(name.strip() for name in text.split(","))
        if names <= BY_NAME.keys():
            return cls(None, names)
        try:
            return cls(dt.date.fromisoformat(text))
        except ValueError:
            known = ", ".join(BY_NAME)
            raise ValueError(f"SERVERS={text}: use names of {known}, joined by commas; or all, or a date") from None

    @property
    def on_request(self) -> frozenset[str]:
        """Those of the named servers that may be missing, unless they were asked for alone."""
        return self.servers & _ON_REQUEST if self.servers == BY_NAME.keys() else frozenset()

    def __str__(self) -> str:
        if self.day is not None:
            return self.day.isoformat()
        return "all" if self.servers == BY_NAME.keys() else ",".join(n for n in BY_NAME if n in self.servers)


def turns(file: str, day: dt.date) -> tuple[str, ...]:
    """The backends that take turns, in the order in which a test file wants them that day.

    Each of its tests runs on the first of them that it has: that is the first of all, but for the few tests that are
    not for all of them.
    """
    first = (crc32(_below_tests(file).encode()) + day.toordinal()) % len(TURNS)
    return TURNS[first:] + TURNS[:first]


def drivers(file: str, text: str) -> tuple[str, ...]:
    """The drivers that a test file is run through, by what DRIVER says: names, or the date whose turns these are.

    Raises:
        ValueError: it says something else.
    """
    if not _below_tests(file).startswith(DRIVEN):
        return DRIVERS[:1]
    if text in DRIVERS or text == "both":
        return DRIVERS if text == "both" else (text,)
    try:
        day = dt.date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"DRIVER={text}: use {', '.join(DRIVERS)} or both, or a date") from None
    turn = day.toordinal() + (day.toordinal() // len(TURNS) if len(TURNS) % 2 == 0 else 0)
    return (DRIVERS[(crc32(b"driver of " + _below_tests(file).encode()) + turn) % len(DRIVERS)],)


def chosen(tests: Iterable[str], choice: Choice, slow: Collection[str] = ()) -> set[str]:
    """Which of these tests a run has, by their ids.

    The tests of a function have to be among them all, or none: from them follows which servers it has.

    Args:
        tests: the ids.
        choice: what SERVERS says.
        slow: the ids of those that are marked as slow.
    """
    tests = list(tests)
    on: dict[str, set[str]] = {}
    for test in tests:
        on.setdefault(test.partition("[")[0], set()).update(backends_of(test))
    return {
        test
        for test in tests
        if _is_chosen(test, on[test.partition("[")[0]], choice)
        and (test not in slow or choice.day is None or _has_its_day(_without_backends(test), choice.day, SHARE))
    }


def always(test: str) -> bool:
    """Whether every `make test` has this test, whichever server's turn it is.

    So are tests without a backend among their parameters, those in memory, and those of the folders that run on every
    backend. Not so are the others, and the samples of long forms, although a run may have them. Nor are slow tests,
    which their ids do not show.
    """
    below, backends = _below_tests(test), backends_of(test)
    if backends and below.startswith(SAMPLES):
        return False
    if below.startswith(CONTRACT) and _OWN.intersection(backends):
        return False
    return _ALWAYS.issuperset(backends) or (below.startswith(EVERY_DAY) and not _ON_REQUEST.intersection(backends))


def backends_of(test: str) -> list[str]:
    """The backends among the parameters of a test."""
    return [part for part in test.partition("[")[2].removesuffix("]").split("-") if part in BY_NAME]


def _is_chosen(test: str, on: set[str], choice: Choice) -> bool:
    """Whether a run has a test, whose function has instances on these backends."""
    below, backends = _below_tests(test), set(backends_of(test))
    if backends & (_ON_REQUEST - choice.servers):
        return False
    if choice.day is None:
        return backends <= choice.servers | _ALWAYS or below.startswith(EVERY_DAY)
    share = next((share for folder, share in PLAYS.items() if below.startswith(folder)), 1)
    if share > 1 and backends:
        return _has_its_day(below, choice.day, share)
    if below.startswith(CONTRACT) and backends & _OWN:
        return _has_its_day(below.partition("::")[0], choice.day, SHARE)
    if backends <= _ALWAYS or below.startswith(EVERY_DAY):
        return True
    wanted = [*turns(below.partition("::")[0], choice.day), *BY_NAME]
    return next(name for name in wanted if name in on - _ALWAYS) in backends


def _has_its_day(name: str, day: dt.date, share: int) -> bool:
    return (crc32(name.encode()) + day.toordinal()) % share == 0


def _without_backends(test: str) -> str:
    function, _, parameters = _below_tests(test).partition("[")
    return "-".join([function, *(part for part in parameters.removesuffix("]").split("-") if part not in BY_NAME)])


def _below_tests(name: str) -> str:
    return name.removeprefix("tests/")
