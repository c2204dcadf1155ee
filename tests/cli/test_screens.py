"""Every screen, looked at in a narrow and a wide terminal and in a pipe, of a store that holds hostile text."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import sqlite3
import struct
import subprocess
import termios
import time

import pytest
from rich.console import Console

import latchwork
from latchwork.cli.commands import list_commands
from latchwork.cli.text import Grid, Line, join_first
from latchwork.jobs import Control
from latchwork.jobs.stored import cluster_store
from latchwork.primitives import LeaderLatch, PersistentLock

EVIL = "\x1b[2J\x1b]0;owned\x07[bold red]x\u202e\u2066\n\rforged"
BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: What a terminal is told by us: colours, and the erasing of a line.
OURS = re.compile(r"\x1b\[[0-9;]*[mK]|\r\n")
NOW = 1_795_338_610

RECORDS = {
    "alive/n1": {
        "worker": EVIL, "state": "ready", "host": EVIL, "pid": 1, "since": 3e10, "version": EVIL,
        "labels": {EVIL: EVIL},
    },
    "alive/n2": {"state": EVIL, "host": [], "pid": -5, "since": -1e300, "unmet_labels": {"j": {EVIL: EVIL}}},
    "alive/a-node-with-a-rather-long-name.of.example.com": {
        "worker": "", "state": "ready", "host": "h" * 60, "since": NOW,
    },
    "work-pool/j": {"items": sorted(["a", EVIL])},
    "work-pool/one": {"items": ["only"]},
    "workers/n1/assigned/j": {"items": sorted(["a", EVIL])},
    "workers/n1/available/j": {},
    "runs/n1": {"jobs": {"j": {"runs": 1, "items": 1, "since": -3e10, "named": {EVIL: 3e10}}}},
    "runs/n2": {"jobs": {"j": {"runs": 1, "items": 1, "since": NOW, "named": {EVIL: NOW}}}},
    "audit/0000000001": {
        **dict.fromkeys(("job", "item", "holder", "by", "reason", "what"), EVIL), "at": "2026-11-22T09:10:10+00:00",
        "token": 1,
    },
    "nodes/n1": {"node": EVIL, "state": "drained", "by": EVIL, "at": EVIL},
    "nodes/gone": {"node": EVIL, "state": "restarting", "by": EVIL, "at": EVIL, "timeout_s": 1e10},
    "settings/jobs/j": {"enabled": True, "changed": {"by": EVIL, "at": EVIL}, EVIL: 1, "threads": 2},
    "versions/assignment": {"strategies": {"*": EVIL}},
    "locks/j/a": {"owner": "o1", "since_s": 3e10, "nonce": EVIL},
    "locks/j/b": {"owner": "o1", "since_s": -1e9, "nonce": EVIL},
    "owners/o1": {"label": EVIL, "host": EVIL, "pid": 3, "ttl_s": 60},
    "fired/j/c": {"fired": [[3e10, None]], "token": 1, "owner": EVIL, "nonce": EVIL},
    "config/text": EVIL,
}  # fmt: skip
COMMANDS = [
    ("status",), ("status", "--all"), ("status", "--json"), ("tree",), ("tree", "--values"),
    ("tree", "--json", "--values"), ("why", "j", "a"), ("why", "j", "a", "--json"), ("why", "j", EVIL),
    ("why", EVIL, "a"), ("locks",), ("locks", "--json"), ("locks", "--audit"), ("locks", "--audit", "--json"),
    ("doctor",), ("doctor", "--json"),
    ("jobs", "list"), ("jobs", "list", "--json"), ("settings", "show"), ("jobs", "set", "j", "--threads", "3"),
    ("jobs", "disable", EVIL), ("jobs", "enable", "j"), ("drain", "n1", "--no-wait"), ("drain", EVIL),
    ("restart", "n2", "--no-wait", "--json"), ("tree", EVIL), ("jobs", "run", "j", "--no-wait"),
    ("show", "latch", "leader"), ("show", "latch", "leader", "--json"), ("show", "lock", EVIL), ("once", "reset", "x"),
    ("forget", "x"), ("forget", EVIL),
    ("executor", "status"), ("executor", "tasks"), ("executor", "dead", "list"), ("plans", "list"), ("workers", "list"),
]  # fmt: skip


@pytest.fixture
def hostile(cli):
    """A store file with all of it; the manager's ticket is there as long as the test."""
    file = cli.folder / "s.db"
    with latchwork.connect(f"sqlite:///{file}?root=app") as store:
        cluster = cluster_store(store)
        for key, record in RECORDS.items():
            cluster.put(key, json.dumps(record).encode())
        with LeaderLatch(cluster, "leader", node_id=EVIL) as latch:
            latch.wait(5)
            with sqlite3.connect(file) as raw:
                columns = "root, key, token, created, owner, value"
                raw.execute(f"INSERT INTO entries ({columns}) VALUES ('app', ?, 1, 1, NULL, x'78')", ("zz/" + EVIL,))
            yield f"sqlite:///{file}?root=app"


def on_terminal(cli, width, *args, **extra):
    """The exit code of a command on a terminal of that width, and what it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    env = {name: value for name, value in cli.env(TERM="xterm", **extra).items() if name != "COLUMNS"}
    shown = b""
    try:
        process = subprocess.Popen(
            [cli.program, *args], cwd=cli.folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
        )
        end = time.monotonic() + 60
        while time.monotonic() < end and (select.select([ours], [], [], 0.1)[0] or process.poll() is None):
            if select.select([ours], [], [], 0)[0]:
                shown += os.read(ours, 65536)
        return process.wait(5), OURS.sub(lambda found: "\n" * (found[0] == "\r\n"), shown.decode())
    finally:
        os.close(theirs)
        os.close(ours)


@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: ascii(" ".join(args))[:40])
def test_hostile_text_reaches_no_terminal_from_any_command(cli, hostile, args):
    done = cli(*args, "--url", hostile)
    refused = EVIL in args and args[:2] != ("why", "j")
    assert done.code in ({1, 2} if refused else {0}), done
    for text in (done.out, done.err):
        assert BAD.search(text) is None
        assert "\nforged" not in text
        assert "Traceback" not in text
    if "--json" in args:
        assert done.json is not None


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("args", [("status",), ("locks",), ("jobs", "list"), ("why", "j", "a")], ids=" ".join)
def test_a_screen_fits_the_terminal_and_has_nothing_hostile(cli, hostile, args, width):
    code, shown = on_terminal(cli, width, *args, LATCHWORK_URL=hostile)
    assert code == 0, shown
    assert BAD.search(shown) is None
    assert max(map(len, shown.splitlines())) <= width
    assert "owned" in shown or args == ("jobs", "list")


def test_moments_have_one_format_on_all_screens(cli, hostile):
    for args in (("status",), ("locks",), ("why", "j", "a"), ("locks", "--audit")):
        out = cli(*args, "--url", hostile).out
        assert re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?!Z)", out) is None, args
    assert "2026-11-22T09:10:10Z" in cli("locks", "--audit", "--url", hostile).out


def test_a_lock_of_a_dead_holder_is_not_held(cli, hostile):
    out = cli("status", "--url", hostile).out
    assert "locks held: 0\n" in out
    assert re.search(r"locks left by holders that are gone: 2 \(.* 2\); they run out by themselves\n", out)
    state = cli("status", "--json", "--url", hostile).json
    assert [lock["is_holder_running"] for lock in state["locks"]] == [False, False]
    assert state["jobs"]["j"]["locked"] == {}
    assert state["jobs"]["j"]["running"] == 2
    assert cli("locks", "--url", hostile).out.count("is gone, it runs out") == 2
    why = cli("why", "j", "a", "--url", hostile).out
    assert "its lock was left by a dead process of node" in why


def test_a_lock_of_a_program_that_is_no_node_is_not_called_left(cli, hostile):
    with latchwork.connect(hostile) as store, PersistentLock(cluster_store(store), "nightly"):
        assert re.search(
            r"\nlocks of processes that are no nodes: 1 \(\S+:\d+ 1\)\n", cli("status", "--url", hostile).out
        )
        assert re.search(r"^nightly .* is no node$", cli("locks", "--url", hostile).out, re.MULTILINE)


def test_one_item_has_no_plural(cli, hostile):
    out = cli("status", "--url", hostile).out
    assert "job one: 1 item, " in out
    assert not re.search(r"\b1 (items|keys|bytes|nodes|jobs|locks)\b", out)


def test_why_of_an_item_that_is_not_there_says_so_and_exits_with_1(cli, hostile):
    done = cli("why", "one", "onyl", "--url", hostile)
    assert (done.code, done.err) == (1, "")
    assert "item 'onyl' is not in the work pool of job one, which has 1 item; similar names are 'only'" in done.out
    assert cli("why", "one", "onyl", "--json", "--url", hostile).json["in_pool"] is False
    assert cli("why", "one", "only", "--url", hostile).code == 0


CHANGES = [
    (("jobs", "disable", "j"), [{"job": "j", "enabled": False, "known": True}]),
    (("jobs", "enable", "--all"), {"all_disabled": False}),
    (("jobs", "default", "off"), {"default_enabled": False}),
    (("jobs", "set", "j", "--threads", "5"), {"job": "j", "settings": {"enabled": True, "threads": 5}}),
    (("jobs", "reset", "j"), {"job": "j", "settings": {}}),
    (("settings", "set", "--debounce-s", "2"), {"cluster": {"debounce_s": 2.0}}),
    (("drain", "n1", "--no-wait"), {"node": "n1", "maintenance": "drained", "is_empty": False}),
    (("drain", "n1", "--undo"), {"node": "n1", "maintenance": None, "changed": True}),
    (("restart", "n2", "--no-wait"), {"node": "n2", "maintenance": "restarting", "is_empty": False}),
]


@pytest.mark.parametrize(("args", "document"), CHANGES, ids=[" ".join(args) for args, _ in CHANGES])
def test_what_changes_something_says_what_as_json_too(cli, hostile, args, document):
    done = cli(*args, "--json", "--url", hostile)
    assert (done.code, done.json) == (0, document)


def test_a_lock_freed_by_hand_is_told_as_json_too(cli, hostile):
    args = ("locks", "--job", "j", "--force-release", "b", "--reason", "it hangs", "--json", "--url", hostile)
    assert cli(*args).json["reason"] == "it hangs"
    refused = cli("locks", "--job", "j", "--force-release", "a", "--reason", "  ", "--url", hostile)
    refused.refused(2, "needs --job, and a --reason")


def test_a_list_of_commands_cuts_no_summary(cli):
    for path in ((), ("jobs",), ("settings",), ("bench",)):
        for width in ("60", "80", "160"):
            done = cli(*path, "--help", COLUMNS=width)
            assert "..." not in done.out.replace("[ARGS]...", "").replace("JOB...", "")
            assert max(map(len, done.out.splitlines())) <= 80


def test_an_option_says_in_a_word_what_it_takes(cli):
    for path in (("status",), ("drain",), ("restart",), ("bench", "assign"), ("bench", "cluster"), ("demo",), ("run",)):
        assert "range>" not in cli(*path, "--help").out
    assert "--interval-s S " in cli("status", "--help").out
    assert "--reason REASON " in cli("locks", "--help").out


def test_a_shell_completes_commands_and_options(cli):
    def completed(words):
        extra = {"_LATCHWORK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        return cli(**extra).out.split()

    assert {"status", "settings"} <= set(completed("latchwork s"))
    assert "--force-release" in completed("latchwork locks --f")


def test_a_shell_completes_the_ids_of_jobs_but_none_that_it_would_run(cli, tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    with latchwork.connect(url) as store:
        cluster_store(store).put("settings/jobs/~root", b'{"enabled": true}')
        for job in ("report", "rebuild", "backup"):
            Control(store).enable(job)

    def completed(words, url=url):
        extra = {"_LATCHWORK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        return cli(LATCHWORK_URL=url, **extra).out.split()

    assert completed("latchwork jobs enable re") == ["rebuild", "report"]
    assert completed("latchwork jobs enable report re") == ["rebuild"], "one that is given already is not offered"
    assert completed("latchwork why rep") == ["report"]
    assert completed("latchwork jobs run b") == ["backup"]
    assert completed("latchwork jobs run ~") == []
    assert completed("latchwork jobs run b", url=f"sqlite:///{tmp_path}/nowhere.db") == []


def printed(part, width=None):
    out = io.StringIO()
    console = Console(file=out, width=width or 1000, force_terminal=width is not None, color_system=None)
    console.print(part)
    return out.getvalue()


ROWS = [{"job": "a", "items": "5", "said": "x"}, {"job": "a long one", "items": "1,000", "said": "東京\x1b"}]


def test_a_table_that_fits_has_its_numbers_below_each_other():
    lines = printed(Grid(ROWS, right=("items",)), 80).splitlines()
    assert lines == ["job         items  said", "a               5  x", "a long one  1,000  東京\\x1b"]


def test_a_table_that_does_not_fit_is_printed_row_by_row():
    lines = printed(Grid(ROWS, right=("items",)), 20).splitlines()
    assert lines == ["a", "  items: 5; said: x", "a long one", "  items: 1,000;", "    said: 東京\\x1b"]


def test_a_long_line_is_wrapped_between_words_on_a_terminal_only():
    line = Line("  one two three four")
    assert printed(line, 14).splitlines() == ["  one two", "    three four"]
    assert printed(line) == "  one two three four\n"


def test_a_few_of_many_are_named_and_the_rest_counted():
    assert join_first(["b", "a"], None) == "a, b"
    assert join_first(map(str, range(1010)), 2) == "0, 1 and 1,008 more"


def test_every_command_is_looked_at():
    # Those of workflows ask a server of their own: tests/workflows/test_command_line.py looks at them.
    # `backends` and `new` ask none.
    elsewhere = {"run", "demo", "bench", "lock", "elect", "workflows", "backends", "new"}
    assert {args[0] for args in COMMANDS} | elsewhere >= set(list_commands())
