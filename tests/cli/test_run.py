"""`latchwork run`: targets, the life of a node, and what it refuses."""

from __future__ import annotations

import re
import signal
import socket
import sys
import time

import pytest

import latchwork
from latchwork.cli.probe import answer_node_request

URL = "sqlite:///cluster.db"
NODE = ("--url", URL, "--node-id", "n1")
JOBS = """
from latchwork.jobs import FixedDelay, Job

def work(context):
    print("RUN", context.node_id, *context.items)

def make(id, items):
    return Job(id, work_pool=items, run=work, schedule=FixedDelay(0.2), initial_delay_s=0)

one = make("one", ["a", "b"])
several = [one, make("two", ["c"])]
empty = []
text = "one"
twice = [make("one", ["a"]), make("one", ["b"])]

class Nested:
    jobs = (one,)

def factory():
    return several

def failing():
    raise RuntimeError("the configuration is missing")

def spaced():
    return make("my job", ["a"])

def raising_pool():
    def pool():
        raise OSError("the list of files is gone")
    return make("broken", pool)

def number_pool():
    return make("numbers", lambda: [1, 2])

def text_pool():
    return make("texts", lambda: "abc")

def doubled_pool():
    return make("doubles", lambda: ["a", "a"])
"""


@pytest.fixture(autouse=True)
def jobs(cli):
    cli.write("jobs.py", JOBS)


def started(process):
    return "node n1 is started" in process.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "items"), [("one", "a b"), ("several", "c"), ("factory", "c"), ("Nested.jobs", "a b")]
)
def test_a_job_a_list_a_nested_name_and_a_function_are_all_run(cli, wait_until, target, items):
    process = cli.start("run", f"jobs:{target}", *NODE)
    wait_until(lambda: f"RUN n1 {items}\n" in process.log.read_text(), f"{items} are run")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


@pytest.mark.parametrize("blow", [signal.SIGTERM, signal.SIGINT])
def test_a_node_told_to_end_says_so_hands_over_and_exits_with_0(cli, wait_until, blow):
    process = cli.start("run", "jobs:one", *NODE)
    wait_until(lambda: "RUN n1 a b" in process.log.read_text(), "the items run")
    process.send_signal(blow)
    assert process.wait(10) == 0
    log = process.log.read_text()
    told = [log.index(f"node n1 is {word}") for word in ("starting", "started", "closing", "closed, it took")]
    assert told == sorted(told)
    assert "Traceback" not in log
    with latchwork.connect(f"sqlite:///{cli.folder}/cluster.db") as store:
        assert store.list("alive") == []
        assert store.list("leader") == []


def test_sigterm_while_the_module_is_still_imported_exits_with_0(cli, wait_until):
    cli.write("slow.py", "import time\nprint('IMPORTING', flush=True)\ntime.sleep(600)\n")
    process = cli.start("run", "slow:job", *NODE)
    wait_until(lambda: "IMPORTING" in process.log.read_text(), "the module is being imported")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_node_without_jobs_warns_and_goes_on(cli, wait_until):
    process = cli.start("run", "jobs:empty", *NODE)
    wait_until(lambda: started(process), "it is started")
    assert re.search(r"WARNING.*no jobs", process.log.read_text())
    process.terminate()
    assert process.wait(10) == 0


def test_a_second_node_with_the_same_id_is_refused_with_the_first_ones_host_and_pid(cli, wait_until):
    first = cli.start("run", "jobs:one", *NODE, "--session-ttl-s", "1")
    wait_until(lambda: started(first), "the first is started")
    began = time.monotonic()
    second = cli("run", "jobs:one", *NODE, "--session-ttl-s", "1")
    second.refused(1, "n1", socket.gethostname(), str(first.pid))
    assert 1.5 < time.monotonic() - began < 8
    assert first.poll() is None


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("nowhere:job", 2, ("'nowhere'", "change to its directory")),
        ("jobs.deeper:job", 2, ("jobs.deeper", "before the colon")),
        ("jobs:nothing", 2, ("'nothing'", "jobs.py", "one")),
        ("jobs", 2, ("'jobs'", "MODULE:ATTRIBUTE")),
        ("jobs:", 2, ("MODULE:ATTRIBUTE",)),
        ("jobs:one:two", 2, ("MODULE:ATTRIBUTE",)),
        ("jobs:text", 2, ("jobs:text", "str", "a Job")),
        ("jobs:work", 1, ("jobs:work", "TypeError", "without arguments")),
        ("jobs:failing", 1, ("jobs:failing", "RuntimeError: the configuration is missing", "jobs.py, line")),
        ("jobs:spaced", 2, ("'my job'", "A-Z")),
        ("jobs:twice", 2, ("two jobs", "'one'")),
        ("jobs:raising_pool", 1, ("broken", "OSError: the list of files is gone", "work_pool")),
        ("jobs:number_pool", 2, ("numbers", "1", "str")),
        ("jobs:text_pool", 2, ("texts", "'abc'", "list")),
        ("jobs:doubled_pool", 2, ("doubles", "'a'", "once")),
    ],
)
def test_a_target_that_cannot_be_run_is_one_clear_line(cli, target, code, words):
    cli("run", target, *NODE).refused(code, *words)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import nonexistent_library\n", ("'bad'", "ModuleNotFoundError", "nonexistent_library", "bad.py, line 1")),
        ("\n\n1 / 0\n", ("'bad'", "ZeroDivisionError", "bad.py, line 3")),
        ("def half(:\n", ("'bad'", "syntax error", "bad.py, line 1")),
        ("raise SystemExit(3)\n", ("'bad'", "SystemExit", "bad.py, line 1")),
    ],
)
def test_a_module_that_raises_on_import_is_named_with_the_line(cli, source, words):
    cli.write("bad.py", source)
    cli("run", "bad:job", *NODE).refused(1, *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--node-id", "n 1"), ("'n 1'", "A-Z")),
        (("--node-id", "n1", "--strategy", "bogus"), ("'bogus'", "balanced", "rendezvous")),
        (("--node-id", "n1", "--session-ttl-s", "-1"), ("session_ttl_s", "-1")),
        (("--node-id", "n1", "--lock-ttl-s", "nan"), ("lock_ttl_s", "nan")),
    ],
)
def test_an_option_that_cannot_be_used_is_named(cli, options, words):
    cli("run", "jobs:one", "--url", URL, *options).refused(2, *words)


def test_a_pool_that_raises_loses_nothing_that_was_stored(cli, wait_until):
    first = cli.start("run", "jobs:one", *NODE)
    wait_until(lambda: "RUN n1 a b" in first.log.read_text(), "the pool is stored")
    cli.write("later.py", "from jobs import make\ndef pool():\n    raise OSError('gone')\njob = make('one', pool)\n")
    cli("run", "later:job", "--url", URL, "--node-id", "n2").refused(1, "OSError: gone")
    state = cli("status", "--json", "--url", URL).json
    assert state["jobs"]["one"]["items"] == 2
    assert list(state["nodes"]) == ["n1"]


PLACING = """
from latchwork.assignment import plan_from_owners

class ByZone:
    name = "by-zone"

    def assign(self, problem):
        first = {job.job: min(job.workers, key=lambda w: job.labels[w].get("zone", "z")) for job in problem.jobs}
        return plan_from_owners(problem, {job.job: dict.fromkeys(job.items, first[job.job]) for job in problem.jobs})

ready = ByZone()
broken = 3

def raising():
    raise RuntimeError("no zones today")
"""


def test_weight_labels_and_times_of_a_node_are_those_of_its_command_line(cli, wait_until):
    options = ("--weight", "2.5", "--label", "gpu=yes", "--label", "disk=a=b", "--debounce-s", "0.1")
    process = cli.start("run", "jobs:one", *NODE, *options, "--disconnect-grace-s", "3")
    wait_until(lambda: started(process), "it is started")
    (about,) = cli("status", "--json", "--url", URL).json["nodes"].values()
    assert (about["weight"], about["labels"]) == (2.5, {"gpu": "yes", "disk": "a=b"})
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


@pytest.mark.parametrize("own", ["ready", "ByZone"])
def test_a_strategy_of_ones_own_for_one_job_places_its_items_by_the_labels_of_nodes(cli, wait_until, own):
    cli.write("placing.py", PLACING)
    options = ("--url", URL, "--strategy", f"one=placing:{own}", "--strategy", "evenly-spread")
    for node, zone in (("n1", "b"), ("n2", "a")):
        process = cli.start("run", "jobs:several", *options, "--node-id", node, "--label", f"zone={zone}")
        wait_until(lambda process=process: "is started" in process.log.read_text(), "it is started")

    def assigned():
        return cli("status", "--json", "--url", URL).json["jobs"]["one"]["assigned"]

    wait_until(lambda: assigned() == {"a": "n2", "b": "n2"}, "both items are in zone a")
    assert cli("why", "two", "c", "--json", "--url", URL).json["strategy"] == "evenly-spread"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--label", "gpu"], "not NAME=VALUE"),
        (["--label", "a=1", "--label", "a=2"], "given twice"),
        (["--strategy", "fastest"], "balanced"),
        (["--strategy", "rendezvous", "--strategy", "balanced"], "given twice"),
        (["--strategy", "one=placing:broken"], "not a strategy"),
        (["--strategy", "placing:nothing"], "no attribute 'nothing'"),
        (["--strategy", "nowhere:at_all"], "no module 'nowhere'"),
        (["--weight", "0"], "weight"),
        (["--disconnect-grace-s", "60"], "raise lock_ttl_s"),
    ],
)
def test_a_node_with_an_option_that_cannot_be_used_is_refused_and_told_which(cli, options, words):
    cli.write("placing.py", PLACING)
    cli("run", "jobs:one", *NODE, *options).refused(2, words)


def test_a_strategy_whose_maker_raises_is_named_with_the_place_in_its_code(cli):
    cli.write("placing.py", PLACING)
    cli("run", "jobs:one", *NODE, "--strategy", "placing:raising").refused(1, "no zones today", "placing.py, line")


def test_metrics_without_their_library_are_501_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    status, kind, body = answer_node_request(None, "/metrics")
    assert (status, kind) == (501, "text/plain")
    assert b'pip install "latchwork[metrics]"' in body
