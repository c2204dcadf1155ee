"""Workers with real children: what a task gets, says and leaves behind, and how it is ended."""

import json
import os
import shutil
import tempfile
import time
import uuid
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

import latchwork
from disks import mounted
from latchwork.primitives import WorkQueue
from latchwork.tasks import WorkerLoop
from latchwork.testing.faults import FaultyStore
from latchwork.types import Put
from latchwork_workflows.bundles import pack_bundle
from latchwork_workflows.keys import get_workflows_store
from latchwork_workflows.logs import LogStoreMismatch, open_logs
from latchwork_workflows.state import Outcome
from latchwork_workflows.types import Command, TaskTypes
from latchwork_workflows.types.shell import ShellParams
from latchwork_workflows.worker import Secrets, preparation
from latchwork_workflows.worker.attempt import parse_outputs
from latchwork_workflows.worker.session import WorkflowHooks, WorkflowSession
from patience import eventually

from . import working
from .working import KEYS, log_of, put, result, running, shell

pytestmark = pytest.mark.threads


@pytest.fixture
def store():
    with latchwork.connect(f"memory://{uuid.uuid4().hex}") as opened:
        yield get_workflows_store(opened)


def test_shell_task_succeeds_with_outputs_and_a_log_and_leaves_nothing(store, logs, worker, tmp_path):
    x = shell(
        store, 1, 'echo "hello $day"; echo oops >&2; echo rows=17 >> "$LATCHWORK_OUTPUT"', values={"day": "Monday"}
    )
    found = result(store, x)
    assert found.outcome is Outcome.SUCCESS
    assert (found.exit_code, found.outputs, found.error, found.worker) == (0, {"rows": 17}, "", "w1")
    assert found.ended_at >= found.started_at
    assert log_of(logs, found) == "hello Monday\noops\n[latchwork] success, exit code 0\n"
    assert logs.read(found.log_ref, 0).ended
    assert store.get(KEYS.running_key(0, x)) is None
    assert WorkQueue(store, KEYS.backlog).items() == []
    assert list((tmp_path / "work" / "attempts" / "w1").iterdir()) == []


def test_failure_says_code_and_last_line_and_signal(store, logs, worker):
    shell(store, 1, "echo the disk is on fire; exit 3")
    shell(store, 2, "kill -9 $$")
    first, second = result(store, "1.1"), result(store, "2.1")
    assert (first.outcome, first.exit_code) == (Outcome.FAILURE, 3)
    assert first.error == "ended with code 3: the disk is on fire"
    assert (second.outcome, second.exit_code) == (Outcome.FAILURE, -9)
    assert "SIGKILL, not sent by this worker: the machine may be out of memory" in second.error


def test_python_task_is_called_with_its_arguments_and_returns_outputs(store, logs, worker, tmp_path):
    (tmp_path / "shopping.py").write_text(
        "import json\ndef buy(item, count):\n    print('buying', count)\n    return {'bought': [item] * count}\n"
        "def fail():\n    raise ValueError('no money')\n"
    )
    bundle = pack_bundle(tmp_path / "shopping.py")
    logs.put_file(bundle.file_name, bundle.data)
    args = {"item": "${what}", "count": 2}
    put(
        store,
        1,
        {"function": "shopping:buy", "args": args, "bundle": bundle.sha256},
        type="python",
        values={"what": "tea"},
    )
    put(store, 2, {"function": "shopping:fail", "bundle": bundle.sha256}, type="python")
    found = result(store, "1.1")
    assert (found.outcome, found.outputs) == (Outcome.SUCCESS, {"bought": ["tea", "tea"]})
    failed = result(store, "2.1")
    assert (failed.outcome, failed.error) == (Outcome.FAILURE, "ended with code 1: ValueError: no money")
    assert "Traceback" in log_of(logs, failed)


def test_bundle_whose_bytes_are_not_those_of_its_name_is_not_run(store, logs, worker, tmp_path):
    (tmp_path / "evil.py").write_text("def run():\n    open('/tmp/never', 'w')\n")
    bundle = pack_bundle(tmp_path / "evil.py")
    logs.put_file("bundles/" + "0" * 64, bundle.data)
    put(store, 1, {"function": "evil:run", "bundle": "0" * 64}, type="python")
    put(store, 2, {"function": "evil:run", "bundle": "1" * 64}, type="python")
    assert "was changed" in result(store, "1.1").error
    assert "is not in file://" in result(store, "2.1").error


def test_secret_reaches_the_task_and_nothing_that_is_kept(store, logs, worker):
    script = (
        'echo "password: $PGPASSWORD"; echo "found=$PGPASSWORD" >> "$LATCHWORK_OUTPUT"; test "$PGPASSWORD" = hunter2!'
    )
    x = shell(store, 1, script, env={"PGPASSWORD": "${secret:warehouse}"})
    found = result(store, x)
    assert found.outcome is Outcome.SUCCESS
    assert found.outputs == {"found": "***"}
    assert log_of(logs, found).startswith("password: ***\n")
    assert b"hunter2" not in b"".join(entry.value for entry in store.list(KEYS.name, recursive=True))


def test_secret_that_is_missing_fails_the_task_and_says_where_to_put_it(store, logs, worker):
    x = shell(store, 1, "true", env={"A": "${secret:no.such}"})
    found = result(store, x)
    assert found.outcome is Outcome.FAILURE
    assert "no secret 'no.such' of project 'default': set LATCHWORK_SECRET_NO_SUCH" in found.error


def test_secrets_and_settings_of_the_worker_are_not_in_the_environment_of_tasks(store, logs, worker, monkeypatch):
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_STORE", "etcd://user:password@host")
    monkeypatch.setenv("LATCHWORK_SECRET_OTHER", "s3cret")
    monkeypatch.setenv("SHOWN", "yes")
    found = result(store, shell(store, 1, "env"))
    text = log_of(logs, found)
    assert "SHOWN=yes" in text
    assert "password" not in text
    assert "s3cret" not in text


def test_values_fill_references_and_never_change_how_programs_run(store, logs, worker):
    values = {"day": "x; touch /tmp/owned", "PATH": "/nowhere", "LD_PRELOAD": "evil.so", "up.rows": 3, "HOME": "/evil"}
    x = shell(
        store,
        1,
        'echo "$day|$MINE|$up_rows|$LD_PRELOAD|$HOME"; ls / > /dev/null',
        values=values,
        env={"MINE": "${day}"},
    )
    found = result(store, x)
    assert found.outcome is Outcome.SUCCESS
    line = log_of(logs, found).splitlines()[0]
    assert line == f"x; touch /tmp/owned|x; touch /tmp/owned|3||{os.environ.get('HOME', '')}"
    assert not Path("/tmp/owned").exists()


def test_reference_without_a_value_ends_the_attempt_for_good_and_names_it(store, logs, worker):
    x = shell(store, 1, "true", env={"A": "${nobody.said}"})
    found = result(store, x)
    assert found.outcome is Outcome.FATAL
    assert "'${nobody.said}' has no value" in found.error


def test_large_spec_is_read_from_its_own_key_which_goes_with_the_item(store, logs, worker):
    x = shell(
        store,
        1,
        'test ${#long} -eq 50000 && echo "size=${#long}" >> "$LATCHWORK_OUTPUT"',
        values={"long": "y" * 50_000},
    )
    assert store.get(KEYS.data_key(x)) is not None
    found = result(store, x)
    assert found.outputs == {"size": 50000}
    assert store.get(KEYS.data_key(x)) is None


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("nonsense", "line 1 of $LATCHWORK_OUTPUT, 'nonsense', is not name=value"),
        ("#json [1]", "has [1] after #json; write an object"),
        ("a<<END\\nb", "ends at a line 'END', which is missing"),
    ],
)
def test_outputs_that_cannot_be_used_fail_the_task_and_say_which_line(store, logs, worker, lines, why):
    x = shell(store, 1, f"printf '{lines}\\n' > \"$LATCHWORK_OUTPUT\"")
    found = result(store, x)
    assert found.outcome is Outcome.FAILURE
    assert why in found.error


def test_outputs_of_all_forms_are_read(store, logs, worker):
    script = 'printf \'a=1\\nb<<END\\nx\\ny=2\\nEND\\n#json {"c": [3]}\\n# no\\n\\na=4=5\\n\' > "$LATCHWORK_OUTPUT"'
    assert result(store, shell(store, 1, script)).outputs == {"a": "4=5", "b": "x\ny=2", "c": [3]}


OUTPUTS = {
    "17": 17,
    "-3": -3,
    "0.25": 0.25,
    "   17 ": 17,
    "[1,2]": [1, 2],
    '[{"a": [null, 3.10]}]': [{"a": [None, 3.1]}],
    "[]": [],
    "3.10": "3.10",
    "007": "007",
    "1e3": "1e3",
    "-0": "-0",
    "9223372036854775808": "9223372036854775808",
    "NaN": "NaN",
    "[NaN]": "[NaN]",
    "[a, b]": "[a, b]",
    "[" * 100 + "]" * 100: "[" * 100 + "]" * 100,
    "true": "true",
    '{"a": 1}': '{"a": 1}',
    "": "",
}


@pytest.mark.parametrize("text", OUTPUTS)
def test_an_output_of_a_shell_is_a_number_a_list_or_text(text):
    assert parse_outputs(f"name={text}\n".encode()) == {"name": OUTPUTS[text]}


def test_an_output_of_several_lines_is_text():
    assert parse_outputs(b"name<<END\n17\nEND\n") == {"name": "17"}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("x" * 131_000, "it has 131,000 bytes, and a variable at most 128,000"),
        ("\u20ac" * 50_000, "it has 150,000 bytes"),
        (["x" * 131_000], "it has 131,004 bytes"),
        ("a\0b", "it has a NUL character"),
    ],
)
@pytest.mark.parametrize("place", ["values", "env"])
def test_a_value_that_cannot_be_a_variable_fails_the_attempt_for_good(store, logs, worker, place, value, why):
    given = (
        {"env": {"big": "${far.big}"}, "values": {"far.big": value}} if place == "env" else {"values": {"big": value}}
    )
    found = result(store, shell(store, 1, "true", **given))
    assert found.outcome is Outcome.FATAL
    assert "'big' cannot be an environment variable: " + why in found.error or "'far_big'" in found.error


def test_a_value_that_cannot_be_a_variable_fails_no_task_that_has_it_as_an_argument(store, logs, worker):
    params = {"function": "json:dumps", "args": {"obj": "${big}"}}
    found = result(store, put(store, 1, params, type="python", values={"big": "x" * 131_000}))
    assert "outputs" in found.error or "LATCHWORK_OUTPUT has more than" in found.error


def test_an_output_may_have_any_letter_but_the_end_of_its_line():
    """What else separates lines in Unicode began another line, which was no name=value: the task failed."""
    text = 'a=x\u2028y\x0bz\x85\r\nb<<END\r\n1\x0c\n2\nEND\n#json {"c": "\u2029"}\nd= '
    assert parse_outputs(text.encode()) == {"a": "x\u2028y\x0bz\x85", "b": "1\x0c\n2", "c": "\u2029", "d": " "}


def test_outputs_that_are_too_large_or_no_file_fail_the_task(store, logs, worker):
    shell(store, 1, 'head -c 70000 /dev/zero > "$LATCHWORK_OUTPUT"')
    shell(store, 2, 'rm "$LATCHWORK_OUTPUT"; ln -s /etc/passwd "$LATCHWORK_OUTPUT"')
    assert "more than 64,000 bytes" in result(store, "1.1").error
    linked = result(store, "2.1")
    assert "is no longer a file" in linked.error
    assert linked.outputs == {}


# Ended by time, by command, by force


def test_task_that_takes_too_long_is_ended_though_it_ignores_sigterm_and_has_forked_away(store, logs, worker, tmp_path):
    mark = tmp_path / "alive"
    script = (
        f"trap '' TERM; setsid sh -c 'trap \"\" TERM HUP; while :; do date >> {mark}; sleep 0.05; done' & sleep 100"
    )
    x = shell(store, 1, script, timeout_s=3.0)
    found = result(store, x)
    assert found.outcome is Outcome.FAILURE
    assert found.error.startswith("it took longer than 3 s and was stopped")
    size = mark.stat().st_size
    time.sleep(0.3)
    assert mark.stat().st_size == size


def test_cancelled_task_is_killed_and_its_cancel_ends_nothing_else(store, logs, worker):
    shell(store, 1, "echo begun; sleep 100")
    shell(store, 2, "sleep 1; echo done")
    running(store, "1.1")
    store.commit([], [Put(KEYS.cancel_key("1.1"), b"")])
    found = result(store, "1.1")
    assert found.outcome is Outcome.KILLED
    assert found.error.startswith("it was stopped ")  # by a command, perhaps before it began
    assert result(store, "2.1").outcome is Outcome.SUCCESS


def test_task_that_is_cancelled_before_it_is_taken_is_never_taken(store, logs, worker, tmp_path):
    store.commit([], [Put(KEYS.cancel_key("1.1"), b"")])
    shell(store, 1, f"touch {tmp_path}/ran")
    shell(store, 2, "true")
    result(store, "2.1")
    assert store.get(KEYS.result_key(0, "1.1")) is None
    assert not (tmp_path / "ran").exists()


def test_processes_that_a_task_leaves_behind_end_with_it(store, logs, worker, tmp_path):
    mark = tmp_path / "alive"
    found = result(store, shell(store, 1, f"setsid sh -c 'while :; do date >> {mark}; sleep 0.02; done' & sleep 0.3"))
    assert found.outcome is Outcome.SUCCESS
    assert "that it left running" in log_of(logs, found)
    size = mark.stat().st_size
    time.sleep(0.2)
    assert mark.stat().st_size == size


def test_flood_of_output_that_is_no_text_neither_stops_the_task_nor_fills_the_disk(store, logs, tmp_path):
    made = working.worker(store, tmp_path, most_log_bytes=100_000)
    found = result(store, shell(store, 1, "head -c 20000000 /dev/urandom; printf '\\033[2Jend of it\\n'"))
    made.close()
    assert found.outcome is Outcome.SUCCESS
    text = log_of(logs, found)
    assert "left out, its end follows" in text
    assert text.endswith("\x1b[2Jend of it\n[latchwork] success, exit code 0\n")
    assert logs.size(found.log_ref) < 200_000


def test_noop_has_succeeded_once_it_is_taken_without_a_log(store, logs, worker):
    found = result(store, put(store, 1, {}, type="noop"))
    assert (found.outcome, found.log_ref, found.pid) == (Outcome.SUCCESS, "", None)
    assert WorkQueue(store, KEYS.backlog).items() == []


def test_program_that_is_not_there_is_a_failure_that_names_it(store, logs, worker):
    found = result(store, put(store, 1, {"script": "x", "interpreter": ["/no/such/shell"]}))
    assert found.outcome is Outcome.FAILURE
    assert "'/no/such/shell' could not start its program: No such file or directory" in found.error


# Items


def test_task_that_has_killed_five_workers_is_ended_by_the_next_without_running(store, logs, tmp_path):
    x = shell(store, 1, f"touch {tmp_path}/ran")
    for _ in range(5):
        (claim,) = WorkQueue(store, KEYS.backlog, session=(session := store.open_session(10.0))).try_take(["default"])
        assert claim.is_held
        session.close()
    made = working.worker(store, tmp_path)
    found = result(store, x)
    made.close()
    assert (found.outcome, found.error) == (Outcome.FATAL, "it has killed its worker 5 times")
    assert not (tmp_path / "ran").exists()


def test_items_that_nobody_of_ours_wrote_get_out_of_the_way(store, logs, worker):
    backlog = WorkQueue(store, KEYS.backlog)
    backlog.put("default", "00", "nonsense", b"nonsense")
    good = shell(store, 1, "true")
    broken = working.ItemName(5, 1, 0)
    backlog.put("default", "00", broken.id, b"nonsense")
    stranger = working.ItemName(6, 1, 0)
    entry = store.get(backlog.key("default", "00", broken.id))
    assert entry is not None or store.get(KEYS.result_key(0, "5.1")) is not None
    head = working.TaskHead(0, 7, 1, 11, 7, 1, "f", "t", "shell")
    backlog.put("default", "00", stranger.id, working.TaskMessage(head).to_bytes()[0])
    assert result(store, good).outcome is Outcome.SUCCESS
    assert "cannot be read" in result(store, "5.1").error
    assert "belongs to attempt 7.1" in result(store, "6.1").error
    eventually(lambda: [each.id for each in backlog.dead_letters()] == ["nonsense"], what="the dead letter")
    assert backlog.items() == []


def test_task_of_a_type_or_tenant_that_is_not_for_this_worker_is_left_to_others(store, logs, worker):
    put(store, 1, {}, type="teleport")
    assert result(store, shell(store, 2, "true")).outcome is Outcome.SUCCESS
    assert [each.attempts for each in WorkQueue(store, KEYS.backlog).items()] == [0]


def test_task_of_another_group_is_left_to_its_workers(store, logs, worker, tmp_path):
    x = shell(store, 1, "true", lane="reports")
    result(store, shell(store, 2, "true"))
    assert store.get(KEYS.result_key(0, x)) is None
    other = working.worker(store, tmp_path, name="w2", groups=("reports",))
    assert result(store, x).worker == "w2"
    other.close()


def test_running_key_and_claim_have_one_token_so_the_log_is_found_while_it_runs(store, logs, worker, tmp_path):
    x = shell(store, 1, f"echo begun; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done")
    running(store, x)
    token = store.get(KEYS.running_key(0, x)).created
    ref = f"7/11/1/1.{token}.log"
    eventually(lambda: _read(logs, ref) == b"begun\n", what="the log")
    assert not logs.read(ref).ended
    (tmp_path / "go").touch()
    assert result(store, x).log_ref == ref


def _read(logs, ref):
    try:
        return logs.read(ref).data
    except LookupError:
        return None


# The life of a worker


def test_worker_refuses_a_log_store_that_is_not_that_of_its_masters(store, tmp_path):
    working.begun(store, tmp_path / "a")
    open_logs(tmp_path / "b" / "logs").set_owner("others")
    with pytest.raises(latchwork.WaitTimeout, match="belongs to workflows others"):
        _refused(store, tmp_path / "b")
    with pytest.raises(latchwork.WaitTimeout, match="belongs to no workflows"):
        _refused(store, tmp_path / "c")
    assert issubclass(LogStoreMismatch, latchwork.LatchworkError)


def _refused(store, folder):
    made = working.Worker(store, logs=open_logs(folder / "logs"), name="w9", options=working.options(folder))
    made.start()
    try:
        eventually(lambda: "belongs" in str(made.health().reasons), what="the reason")
        made.wait_ready(0.0)
    finally:
        made.close()


def test_worker_that_ends_gives_its_tasks_back_and_no_attempt_is_used_up(store, logs, tmp_path):
    path = tmp_path / "journal"
    x = shell(store, 1, working.STEADY, values={"journal": str(path)})
    for number in range(1, 8):  # more often than an attempt may be taken
        made = working.worker(store, tmp_path, name=f"w{number}")
        working.begun_runs(path, number)
        made.close()
        assert store.get(KEYS.running_key(0, x)) is None
    (item,) = WorkQueue(store, KEYS.backlog).items()
    assert item.attempts == 0
    Path(f"{path}.go").touch()
    made = working.worker(store, tmp_path, name="w9")
    assert result(store, x).outcome is Outcome.SUCCESS
    made.close()
    runs = [moments for _, moments in sorted(working.journal(path).items())]
    assert all(before[-1][1] < after[0][1] for before, after in pairwise(runs))


def test_worker_takes_nothing_while_its_logs_cannot_be_written_and_goes_on_when_they_can(
    store, logs, tmp_path, monkeypatch
):
    made = working.worker(store, tmp_path)
    assert result(store, shell(store, 1, "true")).outcome is Outcome.SUCCESS
    shift_health = made._work.health
    monkeypatch.setattr(type(made._logs), "check_writable", _no_space)
    shift_health.record(OSError(28, "No space left on device"))
    assert "logs cannot be written" in made.health().reasons[0]
    shell(store, 2, "true")
    time.sleep(0.5)
    assert store.get(KEYS.result_key(0, "2.1")) is None
    monkeypatch.undo()
    assert result(store, "2.1").outcome is Outcome.SUCCESS
    assert made.health().ok
    made.close()


def _no_space(_self):
    raise OSError(28, "No space left on device")


def test_worker_says_what_it_is(store, logs, worker):
    (member,) = store.list(f"{KEYS.workers}/members")
    about = json.loads(member.value)
    assert "default" in json.dumps(about)
    assert "shell" in json.dumps(about)
    assert worker.health().ok


# Pools


def test_tasks_of_a_group_never_run_more_at_a_time_than_it_says_in_all_workers(store, logs, tmp_path):
    store.put(KEYS.pool_size_key("db"), b"2")
    workers = [working.worker(store, tmp_path, name=f"w{n}", slots=4) for n in (1, 2)]
    script = 'mkdir "$f/at.$$"; ls -d "$f"/at.* | wc -l >> "$f/seen"; sleep 0.15; rmdir "$f/at.$$"'
    xs = [shell(store, n, script, lane="default~db", values={"f": str(tmp_path)}) for n in range(1, 11)]
    assert {result(store, x).outcome for x in xs} == {Outcome.SUCCESS}
    assert max(int(line) for line in (tmp_path / "seen").read_text().split()) <= 2
    eventually(lambda: store.children(f"{KEYS.slots}/db") == ["size"], what="free slots")
    for each in workers:
        each.close()


def test_group_that_is_made_larger_is_used_at_once_and_plain_tasks_pass_a_full_one(store, logs, tmp_path):
    made = working.worker(store, tmp_path, slots=4)
    store.put(KEYS.pool_size_key("db"), b"1")
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    first = shell(store, 1, wait, lane="default~db")
    running(store, first)
    second = shell(store, 2, wait, lane="default~db")
    assert result(store, shell(store, 3, "true")).outcome is Outcome.SUCCESS
    assert store.get(KEYS.running_key(0, second)) is None
    store.put(KEYS.pool_size_key("db"), b"2")
    running(store, second)
    assert sorted(store.children(f"{KEYS.slots}/db")) == ["0", "1", "size"]
    (tmp_path / "go").touch()
    assert result(store, second).outcome is Outcome.SUCCESS
    made.close()


def test_slot_of_a_worker_that_dies_is_free_with_its_session(store, logs, tmp_path):
    store.put(KEYS.pool_size_key("db"), b"1")
    session = store.open_session(30.0)
    store.create(KEYS.slot_key("db", 0), b"9.1", session=session)
    made = working.worker(store, tmp_path)
    x = shell(store, 1, "true", lane="default~db")
    assert result(store, shell(store, 2, "true")).outcome is Outcome.SUCCESS
    assert store.get(KEYS.result_key(0, x)) is None
    session.close()
    assert result(store, x).outcome is Outcome.SUCCESS
    made.close()


@pytest.fixture
def deaf(monkeypatch, tmp_path, logs):
    """A worker that looks only when it has a reason, on a store whose watches report nothing from now on."""
    monkeypatch.setattr("latchwork_workflows.worker.session.WorkerLoop", partial(WorkerLoop, search_s=3600.0))
    url = f"memory://{uuid.uuid4().hex}"
    with FaultyStore(latchwork.connect(url)) as faulty, latchwork.connect(url) as opened:
        store = get_workflows_store(opened)
        store.put(KEYS.id, b"testing")
        store.put(KEYS.pool_size_key("db"), b"1")
        made = working.worker(faulty, tmp_path)
        running(store, shell(store, 99, f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"))  # so it is never idle
        faulty.cut_watches(silent_s=3600.0)
        yield store, made
        (tmp_path / "go").touch()
        made.close()


def test_a_slot_that_was_refused_is_wanted_again_though_no_watch_reports_it_free(deaf, monkeypatch):
    store, made = deaf
    refusals, refused = [], WorkflowHooks.on_claim_refused

    def noted(lanes, item):
        refusals.append(item.id)
        return refused(lanes, item)

    monkeypatch.setattr(WorkflowHooks, "on_claim_refused", noted)
    store.create(KEYS.slot_key("db", 0), b"9.1", session=store.session)
    x = shell(store, 1, "true", lane="default~db")
    made._work.worker_loop.request_search()
    eventually(lambda: refusals, what="a refusal")
    store.delete(KEYS.slot_key("db", 0))
    assert result(store, x).outcome is Outcome.SUCCESS


def test_a_slot_of_the_worker_itself_is_used_again_though_no_watch_reports_it_free(deaf):
    store, made = deaf
    xs = [shell(store, n, "true", lane="default~db") for n in (1, 2, 3)]
    made._work.worker_loop.request_search()
    assert {result(store, x).outcome for x in xs} == {Outcome.SUCCESS}


def test_lanes_are_looked_at_in_the_order_of_what_each_has_first(store, logs, tmp_path):
    store.put(KEYS.pool_size_key("db"), b"5")
    blocker = working.worker(store, tmp_path, slots=1)
    running(store, shell(store, 1, f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"))
    order = f'echo "$name" >> {tmp_path}/order'
    shell(store, 2, order, values={"name": "low"}, env={"name": "low"}, shelf="03")
    shell(store, 3, order, values={"name": "high"}, lane="default~db", shelf="00")
    last = shell(store, 4, order, values={"name": "last"}, shelf="04")
    (tmp_path / "go").touch()
    result(store, last)
    assert (tmp_path / "order").read_text().split() == ["high", "low", "last"]
    blocker.close()


# Tenants


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_task_of_a_tenant_runs_as_that_user_in_a_folder_of_its_own(store, logs, tmp_path, monkeypatch, request):
    monkeypatch.setenv("ROOTS_OWN", "secret")
    work = Path(tempfile.mkdtemp())  # pytest's own folders let nobody else in
    work.chmod(0o711)
    request.addfinalizer(lambda: shutil.rmtree(work))
    made = working.worker(store, tmp_path, work_dir=work, tenants=("nobody",))
    request.addfinalizer(made.close)
    script = 'id -un; echo "$HOME|$ROOTS_OWN"; touch here; echo a=1 > "$LATCHWORK_OUTPUT"; stat -c %U .'
    found = result(store, shell(store, 1, script, tenant="nobody"))
    assert found.outcome is Outcome.SUCCESS, found.error
    assert found.outputs == {"a": 1}
    lines = log_of(logs, found).splitlines()
    assert lines[0] == lines[2] == "nobody"
    assert lines[1].endswith("|")
    assert not lines[1].startswith("/root")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_task_of_a_tenant_reads_neither_files_nor_environment_of_a_task_of_another(store, logs, tmp_path, request):
    work = Path(tempfile.mkdtemp())  # pytest's own folders let nobody else in
    work.chmod(0o711)
    request.addfinalizer(lambda: shutil.rmtree(work))
    request.addfinalizer(working.worker(store, tmp_path, work_dir=work, tenants=("nobody", "daemon")).close)
    shell(store, 1, "umask 0; echo s3cret > mine; echo $$ > pid; sleep 600", env={"A": "s3cret"}, tenant="daemon")
    (theirs,) = eventually(lambda: list(work.glob("**/pid")))
    pid = eventually(theirs.read_text).strip()
    script = f"cat {theirs.parent}/mine || cat /proc/{pid}/environ || ls {theirs.parent.parent} || ls {theirs.parent}"
    log = log_of(logs, result(store, shell(store, 2, script, tenant="nobody")))
    assert (log.partition("[latchwork]")[0].count("Permission denied"), "s3cret" in log) == (4, False), log


@pytest.mark.skipif(os.geteuid() != 0, reason="others take no task of a tenant")
def test_tenant_that_the_machine_does_not_know_is_a_failure_that_names_it(store, logs, tmp_path, request):
    request.addfinalizer(working.worker(store, tmp_path, tenants=("nosuchuser",)).close)
    found = result(store, shell(store, 1, "true", tenant="nosuchuser"))
    assert found.outcome is Outcome.FAILURE
    assert "there is no user 'nosuchuser' on this machine" in found.error


def test_worker_that_is_not_root_leaves_tasks_of_other_users_alone(store, logs, tmp_path, monkeypatch):
    monkeypatch.setattr("latchwork_workflows.worker.session.may_run_as", lambda tenant, _allowed: tenant is None)
    made = working.worker(store, tmp_path)
    shell(store, 1, "true", tenant="somebody")
    assert result(store, shell(store, 2, "true")).outcome is Outcome.SUCCESS
    assert [each.attempts for each in WorkQueue(store, KEYS.backlog).items()] == [0]
    made.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="others become nobody else")
@pytest.mark.parametrize(
    ("tenant", "allowed", "may"),
    [
        ("nobody", (), False),
        ("nobody", ("nobody",), True),
        ("daemon", ("nobody",), False),
        ("root", (), False),
        ("root", ("nobody",), False),
        ("root", ("nobody", "root"), True),
        ("0", ("nobody",), False),
        (None, (), True),
        (None, ("nobody",), False),
        (None, ("nobody", "root"), True),
    ],
)
def test_worker_that_is_root_runs_tasks_as_the_users_on_its_list_alone(tenant, allowed, may):
    assert preparation.may_run_as(tenant, allowed) is may
    if not may:
        with pytest.raises(preparation.NoTenant, match="list that user in its --tenants"):
            preparation.choose_user(tenant, allowed)


@pytest.mark.skipif(os.geteuid() != 0, reason="others become nobody else")
def test_task_of_a_user_that_is_not_on_the_list_is_not_taken(store, logs, tmp_path, request):
    request.addfinalizer(working.worker(store, tmp_path, tenants=("root",)).close)
    shell(store, 1, "true", tenant="nobody")
    assert result(store, shell(store, 2, "true", tenant="root")).outcome is Outcome.SUCCESS
    assert [each.attempts for each in WorkQueue(store, KEYS.backlog).items()] == [0]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB."""
    with mounted(tmp_path, 3) as folder:
        yield folder


def test_full_disk_of_logs_ends_no_task_takes_no_other_and_is_told_in_the_log_once_there_is_room(store, small_disk):
    logs = working.begun(store, small_disk)
    made = working.worker(store, small_disk, work_dir=Path(tempfile.mkdtemp()))
    (filler := small_disk / "filler").write_bytes(b"x" * 2_900_000)
    script = f"echo begun; head -c 2500000 /dev/zero | tr '\\0' y; rm {filler}; sleep 2; echo at the end"
    found = result(store, shell(store, 1, script))
    text = log_of(logs, found)
    assert found.outcome is Outcome.SUCCESS
    assert text.startswith("begun\nyyyy")
    assert "bytes missing here: OSError: [Errno 28] No space left on device" in text
    for each in (small_disk / "logs" / "7").rglob("*.log*"):
        each.unlink()
    assert result(store, shell(store, 2, "echo fine")).outcome is Outcome.SUCCESS
    made.close()
    shutil.rmtree(made.options.work_dir)


class _Broken:
    """A task type of somebody's, which raises, and tells what it should not."""

    name, params, quoted = "broken", ShellParams, frozenset()

    def command(self, params, _run):
        if params.script == "argv":
            return Command(("sh", 3))
        raise RuntimeError(f"cannot run {params.script}")


def test_task_type_that_raises_fails_its_task_and_tells_no_secret(store, logs, tmp_path):
    secrets = Secrets(environ={"LATCHWORK_SECRET_X": "hunter2!"}, providers=())
    made = working.worker(store, tmp_path, secrets=secrets, types=TaskTypes([_Broken()]))
    put(store, 1, {"script": "with ${secret:x}"}, type="broken")
    put(store, 2, {"script": "argv"}, type="broken")
    put(store, 3, {"script": "true"}, env={"A": "hunter2!\0${secret:x}"})
    told = result(store, "1.1")
    assert told.outcome is Outcome.FAILURE
    assert "cannot run with ***" in told.error
    assert result(store, "2.1").outcome is Outcome.FAILURE
    nul = result(store, "3.1")
    assert "'A' cannot be an environment variable: it has a NUL" in nul.error
    assert "hunter2" not in nul.error
    made.close()


def test_a_close_waits_longer_than_tasks_have_to_end_after_sigterm(store, logs, tmp_path, monkeypatch):
    waited, close = [], WorkflowSession.close
    monkeypatch.setattr(
        WorkflowSession, "close", lambda shift, timeout_s: waited.append(timeout_s) or close(shift, timeout_s)
    )
    working.worker(store, tmp_path, stop_grace_s=45.0).close()
    assert min(waited) > 45.0
