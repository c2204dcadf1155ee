"""`latchwork workflows`: what each command prints, as text and as JSON, and how it ends; on a server in this test."""

import json
import logging
import os
import re
import subprocess
import sys

import pytest
import typer

import latchwork
from latchwork._base.text import counted
from latchwork.cli.main import application
from latchwork_workflows.client import WorkflowClient
from latchwork_workflows.db import Database
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.home import Home
from latchwork_workflows.keys import ItemName, get_workflows_store
from latchwork_workflows.serve import Serve, ServeOptions
from latchwork_workflows.web import Role
from latchwork_workflows.worker import WorkerOptions
from patience import eventually

NIGHTLY = """
name: nightly
params: {day: "${logical_date}"}
schedule: {cron: "0 3 * * *", tz: Europe/Berlin}
tasks:
  - name: extract
    type: shell
    params: {script: 'echo "extracting $day"; echo rows=17 >> "$LATCHWORK_OUTPUT"'}
  - name: load
    type: shell
    after: [extract]
    params: {script: 'echo "loading $rows rows"'}
"""
HOLDS = """
name: holds
tasks:
  - {name: first, type: shell, params: {script: 'while [ ! -e "$go" ]; do sleep 0.1; done; test ! -e "$fails"'}}
  - {name: second, type: shell, after: [first], params: {script: 'true'}}
params: {go: none, fails: none}
"""
EVIL = "\x1b[2J\x1b]0;owned\x07[bold red]x\u202e\u2066\rforged"
BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FLOWS = """
from latchwork_workflows import task, workflow

@task
def count(text: str) -> dict:
    print("counting", text)
    return {"letters": len(text)}

@workflow
def letters(text: str = "abc"):
    count(text)
"""


class Told:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)

    def refused(self, code, *words):
        assert self.code == code, self.out + self.err
        (line,) = [each for each in self.err.splitlines() if each.startswith("error:")]
        assert all(word in line for word in words), line


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    options = ServeOptions(port=0, worker=WorkerOptions(slots=4, work_dir=tmp_path_factory.mktemp("work")))
    with Serve(Home.of(tmp_path_factory.mktemp("home")), options) as serve:
        yield serve


@pytest.fixture(autouse=True)
def no_thread_left_behind():
    """The server's are the module's."""


@pytest.fixture
def flows(served, monkeypatch, capsys, tmp_path):
    """Runs a command in this process, on the server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_HOME", str(served.home.folder))
    monkeypatch.setenv("COLUMNS", "160")

    def run(*args):
        with pytest.raises(SystemExit) as ended:
            application()(["workflows", *map(str, args)], prog_name="latchwork")
        told = capsys.readouterr()
        return Told(ended.value.code or 0, told.out, told.err)

    yield run
    logging.getLogger().handlers = [
        each for each in logging.getLogger().handlers if not isinstance(each, logging.NullHandler)
    ]


@pytest.fixture
def nightly(flows, tmp_path):
    (tmp_path / "nightly.yaml").write_text(NIGHTLY)
    flows("apply", "nightly.yaml")
    return "nightly"


def test_a_definition_is_validated_with_every_problem_by_its_place(flows, tmp_path):
    (tmp_path / "bad.yaml").write_text(NIGHTLY.replace("after: [extract]", "after: [extrakt]").replace("shell", "shel"))
    told = flows("validate", "bad.yaml")
    assert told.code == 1
    assert "tasks[1].after[0]: there is no task 'extrakt'" in told.out
    assert "did you mean 'shell'?" in told.out
    assert {each["path"] for each in flows("validate", "bad.yaml", "--json").json["problems"]} >= {"tasks[0].type"}
    assert flows("apply", "bad.yaml").code == 2
    flows("apply", "missing.yaml").refused(2, "missing.yaml cannot be read")


def test_what_a_definition_needs_stored_is_told_by_validate_and_refused_by_apply(flows, tmp_path):
    (tmp_path / "needs.yaml").write_text(
        "name: needs\ntasks:\n"
        "- {name: a, type: sql, params: {connection: shop, statement: 'SELECT :day', parameters: {day: '${dya}'}}}\n"
        "- {name: b, type: shell, params: {script: 'true'}, env: {DAY: '${a.day}'}, after: [a]}\n"
    )
    told = flows("validate", "needs.yaml")
    assert told.code == 0
    assert told.out.splitlines() == [
        "valid, if its project has these settings:",
        "tasks[0].params.parameters.day: '${dya}' is not a parameter, and no task precedes 'a'",
        "tasks[0].params.connection: connection 'shop'",
    ]
    assert [each["path"] for each in flows("validate", "needs.yaml", "--json").json["needs"]] == [
        "tasks[0].params.parameters.day",
        "tasks[0].params.connection",
    ]
    assert flows("apply", "needs.yaml").code == 2


@pytest.mark.slow
def test_a_workflow_is_applied_started_and_seen(flows, nightly):
    again = flows("apply", "nightly.yaml", "--json").json
    assert again["is_new"] is False
    done = flows("start", nightly, "-p", "day=2026-11-22", "--wait", "--json")
    assert (done.code, done.json["state"], done.json["tasks"]) == (
        0,
        "success",
        {"extract": "success", "load": "success"},
    )
    number = done.json["run"]
    assert flows("logs", number, "extract").out.startswith("extracting 2026-11-22\n")
    shown = flows("show", number)
    assert "success" in shown.out
    assert "extract" in shown.out
    assert [each["task"] for each in flows("show", number, "--json").json["attempts"]] == ["load", "extract"]
    assert number in [each["run"] for each in flows("runs", nightly, "--json").json["runs"]]
    assert flows("why", number, "load").out == "It has succeeded.\n"


def test_what_tasks_write_is_followed(flows, nightly):
    told = flows("start", nightly, "--follow")
    assert told.code == 0
    assert re.search(r"^load \| loading 17 rows$", told.out, re.MULTILINE)
    number = int(re.search(r"run (\d+)", told.out)[1])
    assert "loading 17 rows" in flows("logs", number, "load", "--follow").out


def test_all_that_a_task_wrote_is_shown_to_who_follows_however_much_and_lines_stay_whole(flows, tmp_path):
    """It showed 64 kB of each log at a look, and ended with the run: the rest was never seen."""
    script = "seq -f 'line %.0f' 1 100000; printf %05000d 0; echo; printf 'no end'"
    (tmp_path / "much.yaml").write_text(
        f"name: much\ntasks:\n- {{name: talks, type: shell, params: {{script: {json.dumps(script)}}}}}\n"
    )
    flows("apply", "much.yaml")
    told = flows("start", "much", "--follow")
    assert told.code == 0
    lines = [each for each in told.out.splitlines() if each.startswith("talks | ")]
    assert lines[:100_000] == [f"talks | line {each}" for each in range(1, 100_001)]
    assert lines[100_000] == f"talks | {'0' * 5000}"
    assert lines[100_001].startswith("talks | no end")


def test_commands_ask_an_api_by_its_url(flows, nightly, served, monkeypatch, tmp_path):
    database = Database(served.home.database)
    accounts = DatabaseAccounts(database)
    accounts.ensure_account("remote", Role.OPERATOR)
    token = accounts.create_token("remote", "test", by="test")[1]
    database.close()
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_TOKEN", token)
    flows("list").refused(2, "no database")
    found = flows("list", "--url", served.url, "--json").json["workflows"]
    assert "default.nightly" in {each["workflow"] for each in found}
    ended = flows("start", nightly, "--url", served.url, "--wait", "--json").json
    assert ended["state"] == "success"
    assert flows("logs", ended["run"], "extract", "--url", served.url).out
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_URL", served.url)
    assert flows("show", ended["run"], "--json").json["by"] == "remote"
    flows("online", nightly).refused(1, "remote does not have the role editor")
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_TOKEN", "lw_wrong")
    flows("runs").refused(1, "token is not valid")
    flows("runs", "--url", "flows.example.org").refused(2, "is the address of an API")


@pytest.mark.slow
def test_workflows_schedules_and_workers_are_listed(flows, nightly):
    row = next(each for each in flows("list", "--json").json["workflows"] if each["workflow"] == "default.nightly")
    assert (row["cron"], row["online"]) == ("0 3 * * *", True)
    assert "default.nightly" in flows("list").out
    (schedule,) = flows("schedule", nightly, "--count", "3", "--json").json["schedules"]
    assert len(schedule["next_fires"]) == 3
    assert flows("schedule", nightly, "--off", "--json").json["schedules"][0]["next_fires"] == []
    flows("schedule", nightly, "--on")
    (worker,) = flows("workers", "--json").json["workers"]
    assert (worker["slots"], worker["groups"], worker["running"]) == (4, ["default"], [])
    assert flows("show", nightly).out.count("type: shell") == 2
    assert flows("show", nightly, "--svg").out.startswith("<svg")


@pytest.mark.slow
def test_a_python_module_is_deployed_with_its_code(flows, tmp_path, monkeypatch):
    name = f"flows_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FLOWS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    deployed = flows("deploy", f"{name}.py", "--json").json["workflows"]
    assert [(each["workflow"], each["is_new"]) for each in deployed] == [("default.letters", True)]
    done = flows("start", "letters", "-p", 'text="hello"', "--wait", "--json").json
    assert done["state"] == "success", flows("show", done["run"]).out
    assert "counting hello" in flows("logs", done["run"], "count").out


@pytest.mark.slow
def test_a_run_is_paused_resumed_stopped_recovered_and_rerun(flows, tmp_path):
    (tmp_path / "holds.yaml").write_text(HOLDS)
    flows("apply", "holds.yaml")
    go = tmp_path / "go"
    number = flows("start", "holds", "-p", f"go={go}", "--json").json["run"]
    eventually(lambda: "running" in flows("why", number, "first").out)
    (worker,) = flows("workers", "--json").json["workers"]
    assert [(each["name"], each["run"]) for each in worker["running"]] == [("first", number)]
    assert f"first of {number}" in flows("workers").out
    assert flows("pause", number, "--json").json["state"] == "ready_pause"
    flows("pause", number).refused(1, "ready_pause")
    assert flows("resume", number, "--json").json["state"] == "running"
    assert flows("stop", number, "--wait", "--json").json["state"] == "stopped"
    go.touch()
    assert flows("recover", number, "--wait", "--json").json["state"] == "success"
    assert flows("rerun", number, "--wait", "--json").json["state"] == "success"
    assert flows("show", number, "--json").json["round"] == 2


def test_a_run_that_fails_is_exit_code_1(flows, tmp_path):
    (tmp_path / "holds.yaml").write_text(HOLDS)
    flows("apply", "holds.yaml")
    told = flows("start", "holds", "-p", f"go={tmp_path}", "-p", f"fails={tmp_path}", "--wait", "--json")
    assert (told.code, told.json["state"]) == (1, "failure")
    (attempt,) = flows("show", told.json["run"], "--json").json["attempts"]
    assert (attempt["exit_code"], attempt["outcome"]) == (1, "failure")
    assert attempt["error"].splitlines()[0] in flows("show", told.json["run"]).out


def test_a_run_that_fails_says_which_task_with_its_error_and_where_its_log_is(flows, tmp_path):
    (tmp_path / "holds.yaml").write_text(HOLDS)
    flows("apply", "holds.yaml")
    told = flows("start", "holds", "-p", f"go={tmp_path}", "-p", f"fails={tmp_path}", "--wait")
    _, state, cause, log = told.out.splitlines()
    assert (told.code, state.split(": ")[1]) == (1, "failure")
    assert cause.startswith("first: ")
    assert "ended with code 1" in cause
    attempt = re.fullmatch(r"  its log: `latchwork workflows logs (\S+)`", log)[1]
    assert flows("logs", attempt).code == 0
    number = int(re.search(r"run (\d+)", told.out)[1])
    again = flows("recover", number, "--wait")
    assert again.out.splitlines()[1].startswith("first: ")
    document = flows("rerun", number, "--wait", "--json").json
    assert [(each["task"], "ended with code 1" in each["why"]) for each in document["cause"]] == [("first", True)]
    assert document["cause"][0]["attempt"] != attempt


@pytest.mark.slow
def test_a_task_is_forced_by_a_command(flows, tmp_path):
    (tmp_path / "holds.yaml").write_text(HOLDS)
    flows("apply", "holds.yaml")
    number = flows("start", "holds", "-p", f"go={tmp_path}", "-p", f"fails={tmp_path}", "--wait", "--json").json["run"]
    flows("force-success", number, "third").refused(2, "no task 'third'", "first, second")
    flows("force-start", number, "first").refused(1, "failure")
    told = flows("force-success", number, "first")
    assert told.out == (
        f"run {number}: task first is marked as successful; the run is failure; "
        "recover it to run the tasks that follow\n"
    )
    flows("force-success", number, "first").refused(1, "first")
    assert flows("recover", number, "--wait", "--json").json["state"] == "success"
    assert flows("show", number, "--json").json["tasks"] == {"first": "forced_success", "second": "success"}


def test_a_workflow_is_set_offline_and_online_by_commands(flows, nightly):
    assert flows("offline", nightly).out == "nightly is offline\n"
    flows("start", nightly).refused(1, "is offline")
    assert flows("online", nightly, "--json").json == {"workflow": "nightly", "online": True}
    assert flows("start", nightly, "--dry-run", "--wait", "--json").json["state"] == "success"
    flows("offline", "nowhere").refused(1, "no workflow default.nowhere")


def test_a_start_with_the_same_key_is_one_run(flows, nightly):
    first, again = (flows("start", nightly, "--unique-key", "k1", "--json").json["run"] for _ in range(2))
    assert first == again
    assert flows("start", nightly, "--dry-run", "--wait", "--json").json["state"] == "success"


@pytest.mark.slow
def test_mistakes_are_one_line_that_says_what_to_do(flows, nightly, tmp_path):
    flows("start", "unknown").refused(1, "no workflow default.unknown")
    flows("start", nightly, "-p", "month=1").refused(2, "no parameter 'month'")
    flows("start", nightly, "-p", "month").refused(2, "name=value")
    flows("start", nightly, "--scope", "all").refused(2, "--scope")
    flows("show", "999999").refused(1, "no run 999999")
    flows("logs", "1").refused(2, "a run and a task")
    flows("logs", "x", "y").refused(2, "is not a run ID")
    flows("schedule", "--off").refused(2, "name the workflow")
    flows("deploy", "missing.py").refused(2, "missing.py")
    flows("list", "--home", tmp_path / "empty").refused(2, "no database")
    assert flows("pause", "0").code == 2


@pytest.mark.parametrize("number", ["9" * 19, "9" * 30, "9" * 5000])
def test_a_number_that_no_database_has_is_no_run(flows, nightly, number):
    for args in (["show", number], ["logs", number, "load"], ["pause", number], ["why", number]):
        told = flows(*args)
        assert told.code in {1, 2}
        assert "unexpected" not in told.err
        assert [each for each in told.err.splitlines() if each.lower().startswith("error: ")]


def test_a_log_that_cannot_be_read_is_one_clear_error(flows, nightly, served):
    number = flows("start", nightly, "--wait", "--json").json["run"]
    attempt = flows("show", number, "--json").json["attempts"][0]["attempt"]
    (log,) = (served.home.folder / "logs").rglob(f"{attempt.split('.')[0]}/*.log")
    log.unlink()
    log.symlink_to("/etc/passwd")
    flows("logs", attempt).refused(1, f"the log of attempt {attempt} cannot be read now: its path is a link")


def test_secrets_are_kept_for_this_machine_and_never_shown(flows, tmp_path, monkeypatch):
    home = tmp_path / "other"
    monkeypatch.setattr(sys, "stdin", __import__("io").StringIO("hunter2\n"))
    flows("secrets", "set", "DB_PASSWORD", "--home", home)
    assert (home / "secrets" / "default" / "DB_PASSWORD").read_text() == "hunter2"
    told = flows("secrets", "list", "--home", home)
    assert told.out == "default/DB_PASSWORD\n"
    flows("secrets", "rm", "DB_PASSWORD", "--home", home)
    flows("secrets", "rm", "DB_PASSWORD", "--home", home).refused(2, "no secret")


def test_what_was_called_remove_is_called_rm_everywhere_and_still_answers_to_its_old_name(flows, tmp_path):
    for group in ("secrets", "pools", "connections", "environments", "parameters", "channels"):
        shown = flows(group, "--help").out
        assert re.search(r"^\W*rm\b", shown, re.MULTILINE), shown
        assert "remove" not in shown
    flows("secrets", "rm", "NOTHING", "--home", tmp_path / "empty").refused(2, "no secret")


def test_a_database_is_made_and_upgraded(flows, tmp_path):
    made = flows("init", "--home", tmp_path / "new", "--shards", "3", "--json").json
    assert made["shards"] == 3
    assert flows("init", "--home", tmp_path / "new", "--json").json["id"] == made["id"]
    flows("init", "--home", tmp_path / "new", "--shards", "5").refused(1, "has 3 shards")
    assert flows("upgrade", "--home", tmp_path / "new", "--json").json["shards"] == 3
    assert flows("adopt-store", "--home", tmp_path / "new", "--yes", "--json").json["id"] == made["id"]


def test_every_command_explains_itself(flows):
    listed = flows("--help").out
    group = typer.main.get_command(application()).commands["workflows"]
    commands = [each for each in group.commands.values() if not hasattr(each, "commands") and not each.hidden]
    for each in commands:
        assert re.search(rf"^\W*{each.name}\b", listed, re.MULTILINE), each.name
        assert "Examples:" in each.epilog, each.name
    assert "--port" in flows("serve", "--help").out


def test_a_client_waits_follows_and_asks(served, nightly):
    with WorkflowClient.local(served.home) as client:
        done = client.runs.start(nightly).wait(60)
        assert done.state.value == "success"
        assert client.runs.list(nightly)[0].id >= done.id


def test_the_doctor_finds_what_is_wrong_and_has_it_mended(flows, served):
    told = flows("doctor")
    assert (told.code, told.out) == (0, "no problems found\n")
    item = "default/backlog/partitions/nobodys/items/s1/" + ItemName(987654, 1, 0).id
    with latchwork.connect(served.home.store) as opened:
        store = get_workflows_store(opened)
        store.create(item, b'{"attempts": 0, "why": "", "size": 2, "data": ""}\n{}')
        found = flows("doctor", "--json")
        assert (found.code, found.json["ok"]) == (1, False)
        assert [(each["kind"], each["shard"]) for each in found.json["findings"]] == [("item without task", 0)]
        mended = flows("doctor", "--repair")
        assert (mended.code, mended.out, mended.err) == (0, "1 finding repaired\nno problems found\n", "")
        assert store.get(item) is None


def test_all_that_people_wrote_is_exported_and_imported(flows, nightly, tmp_path):
    told = flows("export")
    assert told.code == 0
    assert "name: nightly" in told.out
    document = flows("export", "--json").json
    (tmp_path / "flows.yaml").write_text(told.out)
    same = flows("import", "flows.yaml", "--json").json
    assert {each["what"] for each in same["changes"]} == {"same"}
    there = flows("init", "--home", tmp_path / "other", "--database", f"sqlite:///{tmp_path}/other.db")
    assert there.code == 0
    other = ("--database", f"sqlite:///{tmp_path}/other.db")
    count = len(document["workflows"]) + len(document["accounts"])
    dry = flows("import", "flows.yaml", "--dry-run", *other)
    assert "new workflow default.nightly" in dry.out
    assert f"{counted(count, 'thing')} would be written, 0 the same" in dry.out
    assert f"{counted(count, 'thing')} written, 0 the same" in flows("import", "flows.yaml", *other).out
    assert f"0 things written, {count} the same" in flows("import", "flows.yaml", *other).out
    (tmp_path / "bad.yaml").write_text("latchwork_workflows: 1\nworkflows: [{definition: {name: a b}}]\n")
    bad = flows("import", "bad.yaml", *other)
    assert (bad.code, "workflows[0].definition.name" in bad.out) == (2, True)
    flows("import", "missing.yaml", *other).refused(2, "missing.yaml cannot be read")


@pytest.mark.slow
def test_a_backfill_runs_each_date_and_is_listed_and_stopped(flows, nightly):
    done = flows("backfill", nightly, "--from", "2025-10-25", "--to", "2025-10-27", "--parallel", "2", "--wait")
    assert done.code == 0
    assert re.search(r"backfill (\d+) of default.nightly started: 3 runs", done.out)
    assert done.out.endswith("success, 3 success\n")
    number = int(re.search(r"backfill (\d+)", done.out)[1])
    (listed,) = [each for each in flows("backfills", nightly, "--json").json["backfills"] if each["backfill"] == number]
    assert (listed["state"], listed["counts"]) == ("success", {"success": 3})
    flows("stop-backfill", number).refused(1, "is success; only one that is running or held can be stopped")
    days = [each["run"] for each in flows("runs", nightly, "--json").json["runs"]][:3]
    told = {flows("logs", run, "extract").out.splitlines()[0] for run in days}
    assert told == {f"extracting 2025-10-{day}" for day in (24, 25, 26)}


def test_a_backfill_of_wrong_dates_is_one_clear_error(flows, nightly):
    flows("backfill", nightly, "--from", "2025-10-25").refused(2, "give --from and --to, or --dates")
    flows("backfill", nightly, "--dates", "yesterday").refused(2, "'yesterday' is not a date; write it as 2026-11-22")
    flows("backfill", nightly, "--from", "2025-10-25", "--to", "2025-10-24").refused(2, "put the earlier date first")
    flows("backfill", nightly, "--dates", "2025-10-25", "--order", "up").refused(2, "order: Input should be")


def test_a_backfill_is_stopped(flows, tmp_path):
    (tmp_path / "holds.yaml").write_text(HOLDS)
    flows("apply", "holds.yaml")
    number = flows("backfill", "holds", "--dates", "2025-10-25,2025-10-26", "--json").json["backfill"]
    assert "1 not started" in flows("backfills").out
    stopped = flows("stop-backfill", number, "--wait", "--json").json
    assert (stopped["state"], stopped["counts"]) == ("stopped", {"stopped": 2})


@pytest.mark.parametrize(
    "args",
    [
        ("list",), ("show", "evil"), ("runs", "evil"), ("show", 0), ("why", 0, "a"), ("logs", 0, "a"), ("schedule",),
        ("start", "evil", "-p", f"text={EVIL}", "--follow"), ("start", EVIL), ("show", EVIL), ("list", "--json"),
        ("show", 0, "--json"), ("workers",),
    ],
    ids=lambda args: ascii(" ".join(map(str, args)))[:40],
)  # fmt: skip
def test_hostile_text_reaches_no_terminal_from_any_command(flows, evil, args, monkeypatch):
    if args[0] == "logs":  # as they are in a pipe
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    told = flows(*(evil if each == 0 else each for each in args))
    for text in (told.out, told.err):
        assert BAD.search(text) is None


@pytest.fixture(scope="module")
def evil(served, tmp_path_factory):
    """The number of a run that failed, of a workflow in which everything that may be is hostile."""
    script = (
        'printf "%s\\n" "$text"; printf "%s\\n" "$text" >&2; printf "out=%s\\n" "$text" >> "$LATCHWORK_OUTPUT"; exit 3'
    )
    tasks = [{"name": "a", "type": "shell", "description": EVIL.replace("\r", ""), "params": {"script": script}}]
    given = {"name": "evil", "description": EVIL.replace("\r", ""), "params": {"text": EVIL}, "tasks": tasks}
    with WorkflowClient.local(served.home) as client:
        client.workflows.apply(given)
        run = client.runs.start("evil")
        run.wait(60.0)
        return run.id()


#: Of a process in which some libraries are not installed.
WITHOUT = """
import importlib.util, sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == {name!r} else find(name, *rest)
sys.meta_path.insert(0, Without())
from latchwork.cli.entry import main
main()
"""
LACKS = {
    "uvicorn": (["list"], 'workflows need uvicorn; run: pip install "latchwork[workflows]"'),
    "fsspec": (["list"], 'workflows need fsspec; run: pip install "latchwork[workflows]"'),
    "anyio": (["serve"], 'workflows need anyio; run: pip install "latchwork[workflows]"'),
    "psycopg": (
        ["init", "--database", "postgresql+psycopg://me@nowhere/flows"],
        'PostgreSQL needs psycopg; run: pip install "latchwork[workflows-postgres]"',
    ),
    "kazoo": (["worker", "--store", "zk://127.0.0.1:1/x"], 'run: pip install "latchwork[zookeeper]"'),
    "grpc": (["worker", "--store", "etcd://127.0.0.1:1/x"], 'run: pip install "latchwork[etcd]"'),
    "s3fs": (["worker", "--logs", "s3://bucket/flows"], "Install s3fs to access S3"),
}


@pytest.mark.parametrize("name", LACKS)
def test_a_library_that_is_missing_is_named_with_what_to_install(name, tmp_path):
    args, words = LACKS[name]
    command = [sys.executable, "-c", WITHOUT.format(name=name), "workflows", *args]
    env = {**os.environ, "LATCHWORK_WORKFLOWS_HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    told = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=60)
    assert told.returncode in {1, 2}
    (line,) = told.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert "unexpected" not in line


def test_a_program_without_a_library_of_workflows_is_told_what_to_install():
    program = (
        WITHOUT.format(name="sqlalchemy").partition("from latchwork.cli")[0]
        + "import latchwork_workflows as w; w.Serve"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    wanted = 'ModuleNotFoundError: latchwork_workflows needs sqlalchemy; run: pip install "latchwork[workflows]"'
    assert told.stderr.splitlines()[-1] == wanted
