"""Screens of executors, plans, workers and primitives: what a hostile peer stored reaches no terminal."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing

import pytest
from click.testing import CliRunner
from typer.main import get_command

import latchwork
from latchwork.cli.main import application
from latchwork.executor import Executor, ExecutorWorker
from latchwork.plans import Plans, PlanWorker
from latchwork.primitives import Election, Group, Lock, PersistentLock
from latchwork.tasks import Functions
from latchwork.worker_group import GroupWorker, WorkerInfo
from patience import eventually

EVIL = "\x1b[2J\x1b]0;owned\x07[bold red]x\u202e\u2066\n\rforged"
BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FUNCTIONS = Functions()
PROGRAM = get_command(application())
COMMANDS = """\
executor status
executor status --json
executor tasks
executor tasks --json
executor dead list
executor result text
executor result text --json
executor result fails
plans list
plans list --json
plans show p1
plans show p1 --json
plans graph p1
plans graph p1 --form dot
plans graph p1 --form svg
plans result p1 text
plans result p1 bad
workers list
workers list --json
workers show train
workers show train --json
workers events train
workers events train --json
show lock l
show election e
show group g
show group g --json
show persistent-lock p
tree --values
""".splitlines()
#: What a task raised is how these end.
FAIL = {"executor result fails", "plans result p1 bad"}


@FUNCTIONS.task(name="text")
def text() -> str:
    return EVIL


@FUNCTIONS.task(name="fails")
def fails() -> None:
    raise ValueError(EVIL)


@pytest.fixture
def used(tmp_path):
    """The URL of a file that all of them use, with hostile text wherever one may be given; they live meanwhile."""
    url = f"sqlite:///{tmp_path}/used.db?root=app"
    with latchwork.connect(url) as store:
        with (
            Executor(store, functions=FUNCTIONS) as pool,
            ExecutorWorker(store, node_id="r1", slots=2, functions=FUNCTIONS, labels={"x": EVIL}),
            PlanWorker(store, functions=FUNCTIONS),
            Plans(store, functions=FUNCTIONS).new("week", id="p1", on_failure="continue") as plan,
        ):
            for name in ("text", "fails"):
                task = pool.detached(name, id=name)
                eventually(lambda task=task: task.state().phase in {"done", "failed"})
            plan.add(text, name="text")
            plan.add(fails, name="bad")
            plan.start().wait(30.0)
        with (
            GroupWorker(store, "train", key="a", workers=2, info=WorkerInfo(ip="10.0.0.7", node=EVIL)),
            Group(store, "g", member_id="m", labels={"x": EVIL}) as group,
            Lock(store, "l", label=EVIL),
            Election(store, "e", node_id="me").campaign(EVIL.encode(), timeout_s=10.0),
            PersistentLock(store, "p"),
        ):
            group.wait(10.0)
            yield url


def spoil(file, copy):
    """Copy a store's file, and make every text of every record hostile there."""
    with closing(sqlite3.connect(file)) as ours, closing(sqlite3.connect(copy)) as theirs, theirs:
        ours.backup(theirs)
        for row, value in theirs.execute("SELECT rowid, value FROM entries").fetchall():
            theirs.execute("UPDATE entries SET value = ? WHERE rowid = ?", (spoilt(value), row))


def spoilt(value):
    """A stored record with other texts; what is no JSON stays."""
    head = value[: value.find(b"{")] if b"{" in value else value
    try:
        return head + json.dumps(replaced(json.loads(value[len(head) :]))).encode()
    except ValueError:
        return value


def replaced(part):
    if isinstance(part, dict):
        return {name: replaced(each) for name, each in part.items()}
    if isinstance(part, list):
        return [replaced(each) for each in part]
    return EVIL if isinstance(part, str) else part


def shown(line, url):
    """What a command has printed, which is harmless; and its exit code."""
    done = CliRunner().invoke(PROGRAM, [*line.split(), "--url", url])
    assert done.exception is None or isinstance(done.exception, SystemExit), line
    assert BAD.search(done.output) is None, line
    assert "\nforged" not in done.output, line
    return done.exit_code, done.output


def test_no_screen_of_a_system_shows_anything_hostile(used, tmp_path):
    for line in COMMANDS:
        code, output = shown(line, used)
        assert code == (1 if line in FAIL else 0), output
        if "--json" in line and "events" not in line:
            assert json.loads(output), line
    spoil(tmp_path / "used.db", tmp_path / "spoilt.db")
    for line in COMMANDS:
        if "--json" not in line:
            shown(line, used.replace("used.db", "spoilt.db"))
