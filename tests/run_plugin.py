"""What our runs of pytest have that others have not: tests by level, servers of the whole run, a summary that says so.

`levels.py` has the rule for what a run has, `run_servers.py` starts the servers.
"""

from __future__ import annotations

import datetime as dt
import gc
import os
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from backends_table import is_there
from levels import DRIVEN, DRIVERS, EVERY_DAY, TURNS, Choice, backends_of, chosen, drivers, turns
from run_servers import STARTER, Starter

TESTS = Path(__file__).parent
CHOICE = pytest.StashKey[Choice]()
DESELECTED = pytest.StashKey[int]()
#: Where pytest's cache has the tests that failed before they began, or after: a server did not start. `.ci/run` asks.
NO_VERDICT = "latchwork/no_verdict"


def pytest_configure(config: pytest.Config) -> None:
    """Read SERVERS and DRIVER, and set them for all processes of the run, which may last past midnight."""
    today = dt.datetime.now(dt.UTC).date()
    try:
        choice = Choice.of(os.environ.get("SERVERS", ""), today)
        driver = os.environ.get("DRIVER") or (choice.day or today).isoformat()
        drivers(DRIVEN[0], driver)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    os.environ.update(SERVERS=str(choice), DRIVER=driver)
    config.stash[CHOICE] = choice
    config.stash[STARTER] = Starter()
    config.stash[DESELECTED] = 0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests through the drivers of their file; the loop's have its name in their ids where there are both."""
    if metafunc.definition.get_closest_marker("threads") is not None and os.environ["DRIVER"] != "loop":
        return
    wanted = drivers(metafunc.definition.path.relative_to(TESTS).as_posix(), os.environ["DRIVER"])
    if wanted != DRIVERS[:1]:
        ids = [pytest.HIDDEN_PARAM] if len(wanted) == 1 else [pytest.HIDDEN_PARAM, *wanted[1:]]
        metafunc.parametrize("driver", wanted, indirect=True, ids=ids)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say on which servers and through which drivers tests run: what repeats the choice, then the files of each."""
    files = sorted(_files(config.args))
    return _servers(config.stash[CHOICE], files) + _drivers(os.environ["DRIVER"], files)


def _servers(choice: Choice, files: list[str]) -> list[str]:
    if choice.day is None:
        missing = [f"!! {name} is NOT tested: it is not on this machine" for name in _missing(choice)]
        return [f"servers: SERVERS={choice}", *missing]
    lines = [f"servers: SERVERS={choice} repeats this choice; SERVERS=all has every server, SERVERS={TURNS[0]} one"]
    names = [name for name in files if not name.startswith(EVERY_DAY)]
    for server in TURNS:
        lines += _listed(server, [name for name in names if turns(name, choice.day)[0] == server])
    return lines


def _drivers(text: str, files: list[str]) -> list[str]:
    driven = [name for name in files if name.startswith(DRIVEN)]
    if not driven:
        return []
    lines = [f"drivers: DRIVER={text} repeats this choice; DRIVER=both has threads and the event loop"]
    return lines + [
        line for each in DRIVERS for line in _listed(each, [file for file in driven if each in drivers(file, text)])
    ]


def _listed(title: str, files: list[str]) -> list[str]:
    names = " ".join(file.removesuffix(".py") for file in files)
    return textwrap.wrap(f"{title}: {names}", 118, initial_indent="  ", subsequent_indent="    ")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the run does not have, but for tests that the command line names with their parameters.

    Trials and what is marked as slow come first: nobody shall wait for one of them at the end.
    """
    choice = config.stash[CHOICE]
    missing = _missing(choice)
    named = {argument.removeprefix("./") for argument in config.args if argument.endswith("]")}
    slow = {item.nodeid for item in items if item.get_closest_marker("slow") is not None}
    wanted = chosen((item.nodeid for item in items), choice, slow) | named
    kept: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        has = item.nodeid in wanted and missing.isdisjoint(backends_of(item.nodeid))
        (kept if has else others).append(item)
    items[:] = sorted(kept, key=lambda item: not _takes_long(item))
    if others:
        config.stash[DESELECTED] = len(others)
        config.hook.pytest_deselected(items=others)


def _takes_long(item: pytest.Item) -> bool:
    return item.nodeid.startswith("tests/trials/") or item.get_closest_marker("slow") is not None


def pytest_runtest_setup() -> None:
    """Start no test after the time that `make quick` gives."""
    if time.time() > float(os.environ.get("LATCHWORK_LAST_START", "inf")):
        pytest.skip("`make quick` has no time left")


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was collected: without it, each of its full rounds takes half a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that the run was started in, if this is another."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["deselected"] = session.config.stash[DESELECTED]


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers of the run."""
    if STARTER in config.stash:
        config.stash[STARTER].close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of xdist, before it starts, how to ask for servers."""
    node.workerinput["servers"] = node.config.stash[STARTER].listen()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of xdist has ended: each has collected the same tests."""
    node.config.stash[DESELECTED] = getattr(node, "workeroutput", {}).get("deselected", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many tests this run did not have, and how to repeat what failed."""
    if config.stash[DESELECTED]:
        count = config.stash[DESELECTED]
        terminalreporter.write_line(f"{count} tests belong to other servers or other days; SERVERS=all has them")
    stats = terminalreporter.stats
    failed, broken = ({report.nodeid for report in stats.get(kind, ())} for kind in ("failed", "error"))
    if (cache := getattr(config, "cache", None)) is not None:
        cache.set(NO_VERDICT, sorted({*cache.get(NO_VERDICT, []), *broken} - failed))
    again = {(" ".join(backends_of(test)), test.partition("::")[0]) for test in failed | broken}
    for backends, file in sorted(again):
        where = f"SERVERS={backends.replace(' ', ',')} " if backends else ""
        where += _driver_of(file)
        terminalreporter.write_line(f'to repeat: {where}make test ARGS="{file}"')
    if again:
        choice = f"SERVERS={config.stash[CHOICE]} DRIVER={os.environ['DRIVER']}"
        terminalreporter.write_line(f"to repeat the whole run: {choice} make test")


def _driver_of(file: str) -> str:
    wanted = drivers(file, os.environ["DRIVER"])
    if not file.removeprefix("tests/").startswith(DRIVEN):
        return ""
    return f"DRIVER={wanted[0] if len(wanted) == 1 else 'both'} "


def _missing(choice: Choice) -> set[str]:
    return {name for name in choice.on_request if not is_there(name)}


def _files(arguments: list[str]) -> set[str]:
    """Test files below what the command line names, relative to the folder of tests.

    The conformance kit is a link there, which ``rglob`` does not follow.
    """
    paths = [Path(argument.partition("::")[0]).absolute() for argument in arguments]
    paths += [TESTS / "conformance" for path in paths if TESTS.is_relative_to(path)]
    found = [file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
    return {file.relative_to(TESTS).as_posix() for file in found if file.is_relative_to(TESTS)}
