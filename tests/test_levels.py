"""Which tests a run has, by their ids, the day and SERVERS; and that a run has one set of servers."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from backends_table import BACKENDS, BY_NAME, When
from levels import DRIVEN, DRIVERS, PLAYS, SHARE, TURNS, Choice, always, chosen, drivers, turns
from patience import eventually
from run_servers import Starter, _ask

TESTS = Path(__file__).parent
DAY = dt.date(2026, 11, 22)
WEEK = [DAY + dt.timedelta(days) for days in range(7)]
OWN = {backend.name for backend in BACKENDS if backend.when is When.OWN}
PLAY = next(iter(PLAYS))
FILES = sorted(file.relative_to(TESTS).as_posix() for file in TESTS.rglob("test_*.py"))


def on_each(function, *names):
    """The instances of a test on these backends; on all of them by default."""
    return [f"tests/{function}[{name}]" for name in names or BY_NAME]


def week_of(tests):
    return [chosen(tests, Choice(day)) for day in WEEK]


# Turns


def test_over_a_week_each_file_meets_each_server():
    assert len(FILES) > 100
    for file in FILES:
        assert {turns(file, day)[0] for day in WEEK} == set(TURNS), file
        assert all(sorted(turns(file, day)) == sorted(TURNS) for day in WEEK)


def test_on_each_day_every_server_has_some_of_the_files():
    for day in WEEK:
        had = [turns(file, day)[0] for file in FILES]
        assert min(map(had.count, TURNS)) > len(FILES) / len(TURNS) / 2


def test_a_test_runs_in_memory_and_on_the_server_of_its_file():
    tests = on_each("primitives/test_lock.py::test_it_locks")
    for day in WEEK:
        server = turns("primitives/test_lock.py", day)[0]
        assert chosen(tests, Choice(day)) == set(on_each("primitives/test_lock.py::test_it_locks", "memory", server))


def test_a_test_that_the_server_of_the_day_is_not_for_runs_on_one_that_it_is_for():
    only_old = on_each("cli/test_x.py::test_a", "memory", "etcd34")
    assert week_of(only_old) == [set(only_old)] * 7
    one = on_each("cli/test_x.py::test_b", TURNS[0])
    assert week_of(one) == [set(one)] * 7


def test_a_test_with_more_parameters_takes_its_turn_with_all_of_them():
    tests = [f"tests/jobs/test_x.py::test_a[{name}-{rest}]" for name in TURNS for rest in ("killed", "cut-off")]
    for had in week_of(tests):
        assert len(had) == 2
        assert len({test.partition("[")[2].partition("-")[0] for test in had}) == 1


def test_the_folder_of_a_backend_has_every_server_every_day_and_the_contract_those_of_a_kind_of_their_own():
    there = {backend.name for backend in BACKENDS if backend.when is not When.ON_REQUEST}
    tests = on_each("backends/etcd/test_x.py::test_a")
    assert week_of(tests) == [set(on_each("backends/etcd/test_x.py::test_a", *there))] * 7
    tests = on_each("conformance/test_x.py::test_a")
    every_day = set.intersection(*week_of(tests))
    assert every_day == set(on_each("conformance/test_x.py::test_a", *(there - OWN))) == set(filter(always, tests))


def test_of_the_contract_each_day_has_some_files_on_the_backends_like_another_and_all_have_their_day():
    files = [f"conformance/test_{n}.py" for n in range(30)]
    tests = [test for file in files for test in on_each(f"{file}::test_a", *OWN)]
    days = week_of(tests)
    assert set().union(*days[:SHARE]) == set(tests)
    assert all(0 < len(day) < len(tests) / 2 for day in days)


def test_each_slow_test_has_its_day_on_each_server_and_all_of_them_run_where_servers_are_named():
    tests = [*(f"tests/cli/test_x.py::test_a[{n}]" for n in range(30)), *on_each("jobs/test_x.py::test_b", *TURNS)]
    days = [chosen(tests, Choice(DAY + dt.timedelta(days)), tests) for days in range(SHARE * len(TURNS))]
    assert set().union(*days) == set(tests)
    assert all(len(day) < len(tests) / 2 for day in days)
    assert chosen(tests, Choice.of("all", DAY), tests) == set(tests)


@pytest.mark.parametrize("folder", PLAYS)
def test_of_the_plays_each_day_has_a_share_and_all_have_their_day(folder):
    tests = [f"tests/{folder}test_x.py::test_a[{server}-fault-{n}]" for server in TURNS for n in range(30)]
    days = week_of(tests)
    assert set().union(*days) == set(tests)
    assert all(len(day) < len(tests) / 2 for day in days)
    about = f"tests/{folder}test_x.py::test_the_sample_is_whole"
    assert week_of([about]) == [{about}] * 7


# Drivers


def test_a_file_takes_one_driver_a_day_and_within_two_turns_meets_each_server_through_both():
    driven = [file for file in FILES if file.startswith(DRIVEN)]
    assert len(driven) > 40
    for file in driven:
        days = [DAY + dt.timedelta(days) for days in range(2 * len(TURNS))]
        met = {(drivers(file, day.isoformat()), turns(file, day)[0]) for day in days}
        assert met == {((driver,), server) for driver in DRIVERS for server in TURNS}, file


def test_on_each_day_each_driver_has_some_of_the_files():
    for day in WEEK:
        had = [drivers(file, day.isoformat())[0] for file in FILES if file.startswith(DRIVEN)]
        assert min(map(had.count, DRIVERS)) > len(had) / 4


def test_named_drivers_have_all_files_and_what_is_not_driven_has_threads():
    assert [drivers("primitives/test_lock.py", text) for text in ("thread", "loop", "both")] == [
        ("thread",),
        ("loop",),
        ("thread", "loop"),
    ]
    assert drivers("jobs/test_job.py", "loop") == ("thread",)
    with pytest.raises(ValueError, match="DRIVER=trio: use thread, loop or both, or a date"):
        drivers("primitives/test_lock.py", "trio")


@pytest.mark.slow
def test_a_driver_that_is_asked_for_is_used_and_ids_tell_two_apart():
    test = "tests/primitives/test_bad_input.py"
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", test]

    def ids(driver):
        environment = {**os.environ, "DRIVER": driver, "SERVERS": "memory"}
        ran = subprocess.run(collect, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=True)
        out = ran.stdout
        return {line for line in out.splitlines() if "::" in line}

    one, both = ids("loop"), ids("both")
    assert one == ids("thread")
    assert one < both
    assert {each.replace("loop-", "").replace("-loop", "").replace("[loop]", "") for each in both} == one


# What every run has


def test_what_every_run_has_is_in_each_run():
    tests = [
        *on_each("primitives/test_lock.py::test_it_locks"),
        *on_each("conformance/test_reads.py::test_it_reads"),
        *on_each("backends/etcd/test_faults.py::test_it_dies"),
        *on_each(f"{PLAY}test_faults.py::test_it_holds"),
        "tests/primitives/test_work.py::test_work_is_told_to_stop",
        "tests/backends/etcd/test_faults.py::test_it_dies[3.5]",
        "tests/trials/schedules/test_lock.py::test_lock_keeps_its_rules",
    ]
    in_each_run = set.intersection(*week_of(tests))
    assert {test for test in tests if always(test)} == {test for test in in_each_run if PLAY not in test}


@pytest.mark.parametrize(
    ("test", "is_always"),
    [
        ("primitives/test_work.py::test_work_is_told_to_stop", True),
        ("primitives/test_lock.py::test_it_locks[memory]", True),
        ("tests/primitives/test_lock.py::test_it_locks[memory-applied]", True),
        ("primitives/test_group.py::test_it_groups[sqlite]", False),
        ("conformance/test_reads.py::test_it_reads[sqlite]", True),
        ("primitives/test_lock.py::test_it_locks[zookeeper]", False),
        ("primitives/test_lock.py::test_it_locks[etcd35-applied]", False),
        ("jobs/test_disconnect.py::test_a_cut[grace-zookeeper]", False),
        ("conformance/test_reads.py::test_it_reads[etcd35]", True),
        ("conformance/test_reads.py::test_it_reads[etcd34]", False),
        ("conformance/test_reads.py::test_it_reads[etcd36]", False),
        ("conformance/test_reads.py::test_it_reads[zookeeper39]", False),
        ("backends/etcd/test_faults.py::test_it_dies[3.5]", True),
        ("backends/etcd/test_transactions.py::test_it_counts[etcd34]", True),
        ("trials/primitives/test_primitive_faults.py::test_its_rules_hold_through[sqlite-none-Lock]", False),
        ("trials/history/test_history.py::test_it_is_linearizable[memory]", False),
        ("trials/schedules/test_lock.py::test_lock_keeps_its_rules_under_random_schedules", True),
    ],
    ids=str,
)
def test_which_tests_every_run_has(test, is_always):
    assert always(test) is is_always


# SERVERS


@pytest.mark.parametrize("text", ["2026-11-22", "all", "etcd35", "sqlite,zookeeper", "etcd36", "zookeeper39"], ids=repr)
def test_what_servers_says_is_said_again(text):
    assert str(Choice.of(text, DAY)) == text
    assert str(Choice.of("", DAY)) == "2026-11-22"


@pytest.mark.parametrize("text", ["redis", "etcd", "etcd35,redis", "2026-13-01", ","], ids=repr)
def test_an_unknown_server_is_refused_by_name(text):
    with pytest.raises(ValueError, match=f"SERVERS={text}: use names of memory, sqlite, .*etcd36.*; or all, or a date"):
        Choice.of(text, DAY)


def test_a_date_repeats_the_choice_of_that_day():
    tests = [test for file in FILES for test in on_each(f"{file}::test_a")]
    assert chosen(tests, Choice.of("2026-11-22", WEEK[3])) == chosen(tests, Choice(DAY))
    assert chosen(tests, Choice.of("2026-11-22", WEEK[3])) != chosen(tests, Choice(WEEK[3]))


def test_named_servers_have_all_their_tests_and_plays_and_no_others_have_any():
    tests = [*on_each("primitives/test_lock.py::test_a"), *on_each(f"{PLAY}test_faults.py::test_a")]
    had = chosen(tests, Choice.of("etcd34,etcd36", DAY))
    assert {test for test in tests if "etcd34" in test or "etcd36" in test} <= had
    assert not [test for test in had if "etcd35" in test or "zookeeper" in test]


def test_all_is_everything():
    tests = [test for file in FILES for test in on_each(f"{file}::test_a")]
    assert chosen(tests, Choice.of("all", DAY)) == set(tests)


# Servers of the run


@pytest.fixture
def starter():
    made = Starter()
    yield made
    made.close()


def test_every_process_of_a_run_gets_the_same_server_which_ends_with_the_run(starter):
    name = TURNS[-1]
    way = starter.listen()
    code = "import sys; from run_servers import _ask; print(_ask(tuple(sys.argv[1:3]), sys.argv[3]).url('root'))"
    command = [sys.executable, "-c", code, *way, name]
    asking = [subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert {each.communicate(timeout=60)[0].strip() for each in asking} == {starter.get(name).url("root")}
    server = psutil.Process(starter._running[name].pid)
    starter.close()
    assert not server.is_running()


def test_a_server_that_cannot_be_started_is_an_error_where_it_was_asked_for(starter, monkeypatch):
    monkeypatch.setenv("LATCHWORK_ETCD36", "/nowhere/etcd")
    monkeypatch.setattr("latchwork_testkit.binaries._etcd_candidates", lambda _version: iter([Path("/nowhere/etcd")]))
    with pytest.raises(RuntimeError, match=r"ServerMissing: etcd 3\.6 is not installed"):
        _ask(starter.listen(), "etcd36")


def test_the_servers_of_a_run_that_is_killed_die_with_it():
    code = "from run_servers import *; s = Starter(); s.get('etcd35'); print(s._running['etcd35'].pid, flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; input()"], cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        server = psutil.Process(int(run.stdout.readline()))
        run.send_signal(signal.SIGKILL)
    eventually(lambda: not server.is_running())
