"""The work of ``bench_workflows.py`` with other libraries on one machine: Airflow, Prefect and Luigi.

    PEER_PYTHON benches/workflow_peers.py PEER --folder DIR [--tasks 1000] [--chain 40]     prints lines of JSON

Runs in an interpreter that has the library (scripts/install_workflow_peers), and imports nothing of latchwork. Each
library runs as its manual describes for one machine, with its own database, and its server is started and ended here.
Rates are for tasks that do nothing. Latency is measured from the end of a task of a chain to the start of the next.

Luigi and Prefect run tasks in the process that starts the workflow. Airflow runs them in its scheduler (EmptyOperator)
or in its executor (BashOperator, ``true``), so it has two rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path

IDLE_S = 20.0
WAIT_S = 240.0
HERE = Path(sys.executable).parent


def print_line(what, **figures):
    """Print a line of JSON."""
    print(json.dumps({"what": what, **figures, "load": os.getloadavg()[0]}), flush=True)


def descendants(pid):
    """Return a process and all of its descendants."""
    found, by_parent = [pid], {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            by_parent.setdefault(int(fields[1]), []).append(int(each.name))
    for each in found:
        found += by_parent.get(each, [])
    return found


def used(pid):
    """Return the processor seconds and the private megabytes of a process and all of its descendants."""
    seconds = megabytes = 0.0
    for each in descendants(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        megabytes += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
    return seconds, megabytes


def idle(process):
    """Measure the server while it has no work."""
    time.sleep(5.0)
    before, _ = used(process.pid)
    time.sleep(IDLE_S)
    after, megabytes = used(process.pid)
    print_line("idle", core_percent=(after - before) / IDLE_S * 100, memory_mb=megabytes)


@contextmanager
def server(command, folder, env, is_ready):
    """A server in its own session. Ends all of its processes at the end."""
    began = time.monotonic()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_for(is_ready, process)
            print_line("start", took_s=time.monotonic() - began)
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                for each in descendants(process.pid):
                    with suppress(ProcessLookupError):
                        os.kill(each, number)
                try:
                    process.wait(15)
                    break
                except subprocess.TimeoutExpired:
                    continue


def wait_for(condition, process=None, within_s=WAIT_S):
    """Wait until the condition is true."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end or (process is not None and process.poll() is not None):
            raise SystemExit("it did not come to that; see its server.log")
        time.sleep(0.05)


def answers(url):
    """Return whether a server reports that it is healthy."""
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def print_gaps(of, spans):
    """Print the latency of a chain, whose spans are in seconds."""
    ordered = sorted(spans)
    gaps = sorted(max(0.0, after[0] - before[1]) for before, after in pairwise(ordered))
    p99_ms = gaps[int(len(gaps) * 0.99)] * 1000
    print_line("latency", of=of, p50_ms=statistics.median(gaps) * 1000, p99_ms=p99_ms, tasks=len(ordered))


def environment(**more):
    """Return our environment variables except the ones that would change its settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PREFECT", "PYTHON"))}
    return {**kept, "PATH": f"{HERE}:{os.environ['PATH']}", **more}


# Airflow

DAGS = """
from datetime import datetime
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator

def dag(name, **more):
    return DAG(name, schedule=None, start_date=datetime(2025, 1, 1), catchup=False, max_active_tasks=1000, **more)

with dag("rate"):
    for n in range({part}):
        EmptyOperator(task_id=f"t{{n}}")
with dag("fan"):
    EmptyOperator(task_id="root") >> [EmptyOperator(task_id=f"t{{n}}") for n in range({tasks})]
with dag("work"):
    for n in range({bash}):
        BashOperator(task_id=f"t{{n}}", bash_command="true")
for kind, make in (("noop", EmptyOperator), ("shell", lambda **k: BashOperator(bash_command="true", **k))):
    with dag(f"chain-{{kind}}"):
        last = None
        for n in range({chain}):
            this = make(task_id=f"t{{n:03d}}")
            if last is not None:
                last >> this
            last = this
"""


class Airflow:
    """``airflow standalone``: scheduler, executor, API server and DAG processor, with SQLite."""

    PART, BASH = 250, 40

    def __init__(self, chosen):
        self.chosen = chosen
        self.env = environment(
            AIRFLOW_HOME=str(chosen.folder),
            AIRFLOW__CORE__LOAD_EXAMPLES="False",
            AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION="False",
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="True",
            AIRFLOW__CORE__PARALLELISM="8",  # as many as ours has slots; 32 fail on two cores, and SQLite is locked
            AIRFLOW__API__HOST="127.0.0.1",
            AIRFLOW__API__PORT="18080",
            AIRFLOW__API__BASE_URL="http://127.0.0.1:18080",
        )
        folder = chosen.folder / "dags"
        folder.mkdir()
        text = DAGS.format(part=self.PART, tasks=chosen.tasks, bash=self.BASH, chain=chosen.chain)
        (folder / "flows.py").write_text(text)

    def measure(self):
        """Measure everything and print it."""
        command = [str(HERE / "airflow"), "standalone"]
        with server(command, self.chosen.folder, self.env, self._is_ready) as process:
            idle(process)
            count = max(1, self.chosen.tasks // self.PART)
            took_s = self._run("rate", count)
            print_line("rate", of="empty", per_s=count * self.PART / took_s)
            print_line("fan", tasks=self.chosen.tasks, took_s=self._run("fan", 1))
            for kind in ("noop", "shell"):
                self._run(f"chain-{kind}", 1)
                print_gaps(kind, self._spans(f"chain-{kind}"))
            took_s = self._run("work", 1)
            print_line("rate", of="bash", per_s=self.BASH / took_s)

    def _is_ready(self):
        try:
            known = self._ask("SELECT count(*) FROM dag WHERE is_stale = 0")[0][0] >= 5
        except sqlite3.OperationalError:
            return False
        return known and answers("http://127.0.0.1:18080/api/v2/monitor/health")

    def _ask(self, text, *values):
        with sqlite3.connect(f"file:{self.chosen.folder}/airflow.db?mode=ro", uri=True, timeout=30.0) as connection:
            return connection.execute(text, values).fetchall()

    def _run(self, dag, count):
        for number in range(count):
            command = [str(HERE / "airflow"), "dags", "trigger", dag, "--run-id", f"r{number}"]
            subprocess.run(command, env=self.env, check=True, capture_output=True)
        text = "SELECT count(*) FROM dag_run WHERE dag_id = ? AND state IN ('success', 'failed')"
        wait_for(lambda: self._ask(text, dag)[0][0] == count, within_s=self.chosen.wait_s)
        text = "SELECT min(queued_at), max(end_date), sum(state = 'failed') FROM dag_run WHERE dag_id = ?"
        ((began, ended, failed),) = self._ask(text, dag)
        if failed:
            print_line("failed", of=dag)
        return seconds(ended) - seconds(began)

    def _spans(self, dag):
        text = "SELECT start_date, end_date FROM task_instance WHERE dag_id = ? AND state = 'success'"
        rows = self._ask(text, dag)
        return [(seconds(began), seconds(ended)) for began, ended in rows]


def seconds(text):
    """Return the seconds of a timestamp that SQLAlchemy wrote."""
    return datetime.fromisoformat(text).timestamp()


# Prefect


class Prefect:
    """A server with SQLite. Flows run in a separate process with eight threads for tasks."""

    URL = "http://127.0.0.1:14200/api"

    def __init__(self, chosen):
        self.chosen = chosen
        self.env = environment(
            PREFECT_HOME=str(chosen.folder),
            PREFECT_API_URL=self.URL,
            PREFECT_SERVER_ANALYTICS_ENABLED="false",
            PREFECT_LOGGING_LEVEL="ERROR",
            DO_NOT_TRACK="1",
        )

    def measure(self):
        """Measure everything and print it."""
        command = [str(HERE / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", "14200"]
        with server(command, self.chosen.folder, self.env, lambda: answers(f"{self.URL}/health")) as process:
            idle(process)
            line = [sys.executable, __file__, "prefect-flows", "--folder", str(self.chosen.folder)]
            numbers = ["--tasks", str(self.chosen.tasks), "--chain", str(self.chosen.chain)]
            subprocess.run([*line, *numbers], env=self.env, check=True)


def prefect_flows(chosen):
    """Run the flows, in a process that has the server's address."""
    from prefect import flow, task
    from prefect.task_runners import ThreadPoolTaskRunner

    spans = []

    @task
    def work(script=""):
        began = time.time()
        if script:
            subprocess.run(["/bin/sh", "-c", script], check=True)
        spans.append((began, time.time()))

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=8))
    def fan(count, *, has_root=False):
        root = [work.submit()] if has_root else []
        for each in [work.submit(wait_for=root) for _ in range(count)]:
            each.wait()

    @flow(task_runner=ThreadPoolTaskRunner(max_workers=8))
    def chain(script):
        last = []
        for _ in range(chosen.chain):
            last = [work.submit(script, wait_for=last)]
        last[0].wait()

    fan(8)
    began = time.monotonic()
    fan(chosen.tasks)
    print_line("rate", of="thread", per_s=chosen.tasks / (time.monotonic() - began))
    began = time.monotonic()
    fan(chosen.tasks, has_root=True)
    print_line("fan", tasks=chosen.tasks, took_s=time.monotonic() - began)
    for name, script in (("noop", ""), ("shell", "true")):
        spans.clear()
        chain(script)
        print_gaps(name, spans)


# Luigi


class Luigi:
    """``luigid`` and one worker with eight processes. A file says that a task is done."""

    PORT = 18082

    def __init__(self, chosen):
        self.chosen = chosen

    def measure(self):
        """Measure everything and print it."""
        command = [str(HERE / "luigid"), "--address", "127.0.0.1", "--port", str(self.PORT), "--logdir", "logs"]
        url = f"http://127.0.0.1:{self.PORT}/static/visualiser/index.html"
        (self.chosen.folder / "logs").mkdir()
        with server(command, self.chosen.folder, environment(), lambda: answers(url)) as process:
            idle(process)
            luigi_flows(self.chosen, self.PORT)


def luigi_flows(chosen, port):
    """Run a worker that runs tasks in forked processes."""
    import logging

    import luigi

    logging.getLogger("luigi").setLevel(logging.ERROR)
    logging.getLogger("luigi-interface").setLevel(logging.ERROR)

    class Task(luigi.Task):
        of = luigi.Parameter()
        number = luigi.IntParameter()
        script = luigi.Parameter(default="")

        def requires(self):
            if self.of == "fan" and self.number:
                return [Task(of="fan", number=0)]
            if self.of.startswith("chain") and self.number:
                return [Task(of=self.of, number=self.number - 1, script=self.script)]
            return []

        def output(self):
            return luigi.LocalTarget(str(chosen.folder / self.of / str(self.number)))

        def run(self):
            began = time.time()
            if self.script:
                subprocess.run(["/bin/sh", "-c", self.script], check=True)
            with self.output().open("w") as file:
                file.write(f"{began} {time.time()}")

    def run(tasks):
        began = time.monotonic()
        done = luigi.build(
            tasks, scheduler_host="127.0.0.1", scheduler_port=port, workers=8, log_level="ERROR", no_lock=True
        )
        assert done
        return time.monotonic() - began

    print_line("rate", of="process", per_s=chosen.tasks / run([Task(of="rate", number=n) for n in range(chosen.tasks)]))
    took_s = run([Task(of="fan", number=n) for n in range(chosen.tasks + 1)])
    print_line("fan", tasks=chosen.tasks, took_s=took_s)
    for kind, script in (("noop", ""), ("shell", "true")):
        run([Task(of=f"chain-{kind}", number=chosen.chain - 1, script=script)])
        files = (chosen.folder / f"chain-{kind}").iterdir()
        print_gaps(kind, [tuple(map(float, each.read_text().split())) for each in files])


PEERS = {"airflow": Airflow, "prefect": Prefect, "luigi": Luigi}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=[*PEERS, "prefect-flows"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--chain", type=int, default=40)
    parser.add_argument("--wait-s", type=float, default=600.0)
    chosen = parser.parse_args()
    if chosen.peer == "prefect-flows":
        prefect_flows(chosen)
        return
    chosen.folder = chosen.folder.resolve()
    shutil.rmtree(chosen.folder, ignore_errors=True)
    chosen.folder.mkdir(parents=True)
    PEERS[chosen.peer](chosen).measure()


if __name__ == "__main__":
    main()
