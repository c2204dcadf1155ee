"""Puts real processes into the state of each alert of docs/operate, applies its remedy, and waits for its end.

etcd, one process of each role and Prometheus run on this machine, on the loopback
interface. The windows and thresholds of the rules are shortened. Exit code 1 if an alert did not fire or did not end.

make check WHAT=alerts ARGS="--only LatchworkJobFails"
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from latchwork_testkit.etcd import EtcdServer
from latchwork_testkit.ports import reserve_port
from latchwork_workflows import Home, initialize
from latchwork_workflows.db import Database
from latchwork_workflows.db.accounts import DatabaseAccounts

ROOT = Path(__file__).parents[3]
RULES = ROOT / "docs" / "operate" / "alerts.yml"
LATCHWORK = Path(sys.executable).with_name("latchwork")
#: The files that make the code below misbehave while they exist.
APP = """
import os, time
from pathlib import Path

from prometheus_client import start_http_server

import latchwork
from latchwork.assignment import Balanced
from latchwork.jobs import FixedDelay, Job
from latchwork.primitives import Lock
from latchwork.primitives.metrics import PrimitiveMetrics
from latchwork.store.observe.metrics import StoreMetrics
from latchwork.tasks import TaskContext, task

HERE = Path(__file__).parent


def is_on(name):
    return (HERE / name).exists()


def read_pool():
    if is_on("bad-pool"):
        raise OSError("the pool cannot be read")
    return [f"i{number}" for number in range(len(list(HERE.glob("more-items*"))) + 2)]


def run(context):
    if is_on("fail"):
        raise ValueError("fails")


class Odd:
    name = "odd"

    def assign(self, problem):
        if is_on("bad-strategy"):
            raise ValueError("no assignment")
        return Balanced().assign(problem)


jobs = [
    Job("report", work_pool=read_pool, run=run, schedule=FixedDelay(0.3), pool_check_period_s=1.0),
    Job("second", work_pool=["a", "b"], run=run, schedule=FixedDelay(0.3)),
]


@task
def wait(context: TaskContext) -> None:
    context.wait_stop(600)


@task
def ignore_cancel() -> None:
    while is_on("stuck"):
        time.sleep(0.1)


@task
def die() -> None:
    os._exit(1)


def main():
    start_http_server(int(os.environ["APP_PORT"]), addr="127.0.0.1")
    with latchwork.connect(os.environ["LATCHWORK_URL"], observers=[StoreMetrics("app")]) as store:
        lock = Lock(store, "orders")
        PrimitiveMetrics().watch("orders", lock)
        while True:
            try:
                with lock:
                    while lock.remaining_s() > 0:
                        time.sleep(0.2)
            except latchwork.errors.LatchworkError:
                time.sleep(1)


if __name__ == "__main__":
    main()
"""
FLOW = """
name: flow
tasks:
  - name: only
    type: shell
    params: {script: "while [ -e %(folder)s/flow-waits ]; do sleep 0.2; done; test ! -e %(folder)s/flow-fails"}
"""


@dataclass
class Process:
    """A process of a role that can be stopped, frozen and started again.

    Attributes:
        words: The command.
        port: Where Prometheus scrapes it. None: not scraped.
        env: More environment variables.
    """

    words: list[str]
    port: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None


class World:
    """A store, a process of each role and Prometheus, in one folder."""

    def __init__(self, folder: Path, prometheus: Path) -> None:
        self.folder, self._prometheus = folder, prometheus
        self.etcd = EtcdServer()
        self.processes: dict[str, Process] = {}
        self._port = self._free_port()

    @staticmethod
    def _free_port() -> int:
        reserved = reserve_port()
        reserved.release()
        return reserved.port

    @property
    def url(self) -> str:
        """The URL of the store of jobs, executor, plans and groups."""
        return self.etcd.url("/app")

    def add(self, name: str, *words: str, scraped: bool = True, at: str = "--probe-port", **env: str) -> None:
        """Define a process. ``{port}`` in its environment is the port that Prometheus scrapes."""
        port = self._free_port() if scraped else None
        more = [f"{at}={port}"] if scraped and at else []
        command = list(words)
        cut = command.index("--") if "--" in command else len(command)
        command[cut:cut] = more
        filled = {key: value.replace("{port}", str(port)) for key, value in env.items()}
        self.processes[name] = Process(command, port, filled)

    def start(self, *names: str) -> None:
        """Start processes that do not run."""
        for name in names:
            process = self.processes[name]
            if process.running is None or process.running.poll() is not None:
                with (self.folder / f"{name}.log").open("ab") as log:
                    process.running = subprocess.Popen(
                        process.words,
                        cwd=self.folder,
                        env={**os.environ, **process.env},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        running = self.processes[name].running
        assert running is not None
        running.send_signal(number)
        if number in {signal.SIGTERM, signal.SIGKILL}:
            running.wait(60)

    def stop(self, name: str) -> None:
        """End a process and wait for its end."""
        self.signal(name, signal.SIGTERM)

    def run(self, *words: str, check: bool = True) -> str:
        """Run a latchwork command and return its output."""
        env = {**os.environ, "LATCHWORK_URL": self.url, "LATCHWORK_WORKFLOWS_HOME": str(self.folder / "home")}
        env["LATCHWORK_WORKFLOWS_STORE"] = self.etcd.url("/flows")
        done = subprocess.run(
            [str(LATCHWORK), *words], cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=120
        )
        if check and done.returncode:
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def turn_on(self, *names: str) -> None:
        """Create files that make the code misbehave."""
        for name in names:
            (self.folder / name).touch()

    def turn_off(self, *names: str) -> None:
        """Remove these files."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def watch(self, token: str) -> None:
        """Start Prometheus with shortened rules."""
        rules = RULES.read_text()
        rules = re.sub(r"for: \w+", "for: 1s", rules)
        rules = re.sub(r"\[\d+m\]", "[60s]", rules)
        rules = (
            rules.replace("offset 10m", "offset 60s")
            .replace("_seconds > 60", "_seconds > 4")
            .replace("severity", "level")
        )
        (self.folder / "alerts.yml").write_text(rules)
        jobs = [
            {
                "job_name": f"latchwork-{name}",
                "honor_labels": True,
                "static_configs": [{"targets": [f"127.0.0.1:{process.port}"]}],
            }
            for name, process in self.processes.items()
            if process.port is not None
        ]
        for job in jobs:
            if job["job_name"] == "latchwork-api":  # it waits for its store before it says that it has none
                job |= {"scrape_interval": "10s", "scrape_timeout": "10s"}
                job["authorization"] = {"credentials": token}
        settings = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config = {"global": settings, "rule_files": ["alerts.yml"], "scrape_configs": jobs}
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.processes["prometheus"] = Process(
            [
                str(self._prometheus),
                f"--config.file={self.folder}/prometheus.yml",
                f"--storage.tsdb.path={self.folder}/tsdb",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ]
        )
        self.start("prometheus")

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/alerts", timeout=5) as answer:
                found = json.load(answer)["data"]["alerts"]
        except OSError:
            return set()
        unstarted = {f"latchwork-{name}" for name, process in self.processes.items() if process.running is None}
        return {
            each["labels"]["alertname"]
            for each in found
            if each["state"] == "firing"
            and not (each["labels"]["alertname"] == "LatchworkTargetDown" and each["labels"]["job"] in unstarted)
        }

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition, and return whether it came true."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if is_so():
                return True
            time.sleep(0.5)
        return is_so()

    def close(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            if process.running is not None and process.running.poll() is None:
                process.running.send_signal(signal.SIGCONT)
                process.running.terminate()
        for process in self.processes.values():
            if process.running is not None:
                try:
                    process.running.wait(20)
                except subprocess.TimeoutExpired:
                    process.running.kill()
                    process.running.wait()


@contextmanager
def world(prometheus: Path, folder: Path) -> Iterator[World]:
    """Start everything that the alerts watch."""
    with ExitStack() as stack:
        made = World(folder, prometheus)
        stack.enter_context(made.etcd)
        stack.callback(made.close)
        (folder / "app.py").write_text(APP)
        (folder / "flow.yaml").write_text(FLOW % {"folder": folder})
        home = Home.of(folder / "home", environ={})
        home.create_folder()
        database = Database(home.database)
        stack.callback(database.close)
        initialize(database)
        made.run("workflows", "users", "set", "prometheus", "--role", "viewer")
        _, token = DatabaseAccounts(database).new_token("prometheus", "metrics", by="check_alerts")
        latchwork = str(LATCHWORK)
        app = {"LATCHWORK_URL": made.url}
        flows = {
            "LATCHWORK_WORKFLOWS_HOME": str(home.folder),
            "LATCHWORK_WORKFLOWS_STORE": made.etcd.url("/flows"),
            "LATCHWORK_WORKFLOWS_LOGS": str(folder / "logs"),
            "LATCHWORK_WORKFLOWS_SESSION_TTL_S": "8",
        }
        node = [latchwork, "run", "app:jobs", "--strategy", "app:Odd", "--node-id"]
        made.add("jobs", *node, "n1", **app)
        made.add("other-jobs", *node, "n2", LATCHWORK_URL=made.etcd.url("/typo"))
        tasks = ("--import", "app", "--slots", "2", "--session-ttl-s", "5")
        executor = [latchwork, "executor", "run", *tasks, "--max-attempts", "2", "--node-id"]
        made.add("executor", *executor, "e1", **app)
        made.add("executor-2", *executor, "e2", **app)
        made.add("executor-3", *executor, "e3", "--name", "deadly", **app)
        made.add("plans", latchwork, "plans", "worker", *tasks, **app)
        made.add("plans-2", latchwork, "plans", "worker", *tasks, **app)
        script = f"while [ ! -e {folder}/exit-1 ]; do sleep 0.2; done; rm -f {folder}/exit-1; exit 1"
        crew = [latchwork, "workers", "run"]
        made.add("group", *crew, "train", "-n", "1", "--", "sh", "-c", script, **app)
        pair = ("pair", "-n", "2", "--per-host", "1", "--address", "127.0.0.1", "--host")
        made.add("host-1", *crew, *pair, "h1", "--", "sleep", "600", **app)
        made.add("host-2", *crew, *pair, "h2", "--", "sleep", "600", scraped=False, **app)
        made.add("app", sys.executable, "app.py", at="", APP_PORT="{port}", **app)
        made.add("api", latchwork, "workflows", "api", at="--port", **flows)
        made.add("master", latchwork, "workflows", "master", "--node-id", "m1", **flows)
        made.add("worker", latchwork, "workflows", "worker", "--name", "w1", "--slots", "1", **flows)
        made.add("worker-2", latchwork, "workflows", "worker", "--name", "w2", "--slots", "1", **flows)
        made.start("jobs", "executor", "executor-3", "plans", "app", "api", "master", "worker", "group")
        made.watch(token)
        made.run("workflows", "apply", "flow.yaml")
        yield made


def freeze(made: World, *names: str, seconds: float) -> None:
    """Stop processes for so long, as a pause of a machine does."""
    for name in names:
        made.signal(name, signal.SIGSTOP)
    time.sleep(seconds)
    for name in names:
        made.signal(name, signal.SIGCONT)


def submit(made: World, function: str, count: int = 1, name: str = "default") -> None:
    """Submit tasks to an executor."""
    for _ in range(count):
        made.run("executor", "submit", f"app:{function}", "--detach", "--name", name)


def kill_workers(made: World) -> None:
    """Submit a task that ends its worker, and start the worker again after each of its two attempts."""
    submit(made, "die", name="deadly")
    for _ in range(2):
        running = made.processes["executor-3"].running
        assert running is not None
        running.wait(60)
        made.start("executor-3")


def drop_letters(made: World) -> None:
    """Delete all dead letters."""
    for each in json.loads(made.run("executor", "dead", "list", "--name", "deadly", "--json"))["dead"]:
        made.run("executor", "dead", "drop", each["letter"], "--name", "deadly")


def cancel_all(made: World) -> None:
    """Cancel all tasks of the executor."""
    for each in json.loads(made.run("executor", "tasks", "--json"))["tasks"]:
        made.run("executor", "cancel", each["id"], check=False)


def plan(made: World, count: int) -> None:
    """Start a plan of tasks that wait."""
    script = (
        "import os, latchwork, app; from latchwork.plans import Plans\n"
        "with latchwork.connect(os.environ['LATCHWORK_URL']) as store:\n"
        f"    with Plans(store).new('waits') as plan:\n        [plan.add(app.wait) for _ in range({count})]\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], cwd=made.folder, env={**os.environ, "LATCHWORK_URL": made.url}, check=True
    )


def cancel_plans(made: World) -> None:
    """Cancel all running plans."""
    for each in json.loads(made.run("plans", "list", "--json"))["plans"]:
        made.run("plans", "cancel", each["plan"], check=False)


def recover_runs(made: World) -> None:
    """Retry the failed runs of the workflow."""
    made.turn_off("flow-fails")
    for each in json.loads(made.run("workflows", "runs", "--state", "failure", "--json"))["runs"]:
        made.run("workflows", "recover", str(each.get("id") or each.get("run")))


#: Alerts, what makes them fire, and the remedy of their runbooks.
Step = Callable[[World], object]
PLAYS: list[tuple[tuple[str, ...], Step, Step]] = [
    (("TargetDown",), lambda w: w.signal("app", signal.SIGKILL), lambda w: w.start("app")),
    (("JobFails",), lambda w: w.turn_on("fail"), lambda w: w.turn_off("fail")),
    (("JobDoesNotRun",), lambda w: w.run("jobs", "disable", "second"), lambda w: w.run("jobs", "enable", "second")),
    (("WorkPoolUnreadable",), lambda w: w.turn_on("bad-pool"), lambda w: w.turn_off("bad-pool")),
    (
        ("RebalanceFails",),
        lambda w: w.turn_on("bad-strategy", "more-items-1"),
        lambda w: w.turn_off("bad-strategy", "more-items-1"),
    ),
    (("TwoManagers",), lambda w: w.start("other-jobs"), lambda w: w.stop("other-jobs")),
    (("ExecutorTasksDead",), kill_workers, drop_letters),
    (
        ("ExecutorSaturated",),
        lambda w: submit(w, "wait", 2),  # of two slots; the claims of these tasks are lost in a later play
        lambda w: w.start("executor-2"),
    ),
    (
        ("PlansSaturated",),
        lambda w: plan(w, 2),
        lambda w: w.start("plans-2"),
    ),
    (
        ("ExecutorClaimsLost", "PlanClaimsLost", "SessionLost", "PrimitiveLost"),
        lambda w: freeze(w, "executor", "plans", "app", "jobs", seconds=20),
        lambda w: (cancel_all(w), cancel_plans(w)),
    ),
    (
        ("ExecutorTasksStuck",),
        lambda w: (w.turn_on("stuck"), submit(w, "ignore_cancel"), time.sleep(3), cancel_all(w)),
        lambda w: (w.signal("executor", signal.SIGKILL), w.signal("executor-2", signal.SIGKILL), w.turn_off("stuck"),
                   w.start("executor")),
    ),
    (("WorkerGroupRestarts",), lambda w: w.turn_on("exit-1"), lambda w: w.turn_off("exit-1")),
    (("WorkerGroupWaits",), lambda w: w.start("host-1"), lambda w: w.start("host-2")),
    (
        ("WorkflowsRunsFail",),
        lambda w: (w.turn_on("flow-fails"), w.run("workflows", "start", "flow")),
        recover_runs,
    ),
    (
        ("WorkflowsSaturated",),
        lambda w: (w.turn_on("flow-waits"), w.run("workflows", "start", "flow")),
        lambda w: w.start("worker-2"),
    ),
    (
        ("WorkflowsNoWorkers",),
        lambda w: (w.turn_off("flow-waits"), w.stop("worker"), w.stop("worker-2")),
        lambda w: w.start("worker"),
    ),
    (
        ("WorkflowsShardsWithoutOwner", "WorkflowsCommandsWait"),
        lambda w: (w.stop("master"), w.run("workflows", "start", "flow", check=False)),
        lambda w: w.start("master"),
    ),
    (
        ("StoreUnavailable", "NodeUnhealthy", "NoManager", "LocksRunOut", "ExecutorWorkerUnhealthy",
         "PlanWorkerUnhealthy", "WorkflowsMasterUnhealthy", "WorkflowsWorkerUnhealthy", "WorkflowsStoreUnreachable"),
        lambda w: w.etcd.pause(),
        lambda w: w.etcd.resume(),
    ),
]  # fmt: skip


def main() -> int:
    """Play all alerts and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="an alert; may be given several times (default: all)")
    parser.add_argument("--prometheus", type=Path, default=ROOT / ".venv/operate/usr/bin/prometheus")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="seconds for each change (default: 120)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    options = parser.parse_args()
    known = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    played = {f"Latchwork{name}" for names, _, _ in PLAYS for name in names}
    if known != played:
        print(f"without a play, or without a rule: {', '.join(sorted(known ^ played))}")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # close what runs
    folder = Path(tempfile.mkdtemp(prefix="latchwork-alerts-"))
    failed: list[str] = []
    with world(options.prometheus, folder) as made:
        time.sleep(20)  # each process has been scraped
        made.wait_until(lambda: not made.firing(), options.timeout_s)
        for names, breaks, remedies in PLAYS:
            wanted = {f"Latchwork{name}" for name in names}
            if options.only and not wanted & set(options.only):
                continue
            seen: dict[str, float] = {}
            begun = time.monotonic()
            breaks(made)

            def has_fired(wanted: set[str] = wanted, seen: dict[str, float] = seen, begun: float = begun) -> bool:
                for name in made.firing() & wanted:
                    seen.setdefault(name, time.monotonic() - begun)
                return set(seen) == wanted

            made.wait_until(has_fired, options.timeout_s)
            remedies(made)
            begun_remedy = time.monotonic()
            has_ended = made.wait_until(lambda wanted=wanted: not made.firing() & wanted, options.timeout_s)
            ended_s = time.monotonic() - begun_remedy
            for name in sorted(wanted):
                fired = f"fired after {seen[name]:.0f} s" if name in seen else "DID NOT FIRE"
                is_over = name not in made.firing()
                end = f"ended {ended_s:.0f} s after the remedy" if is_over else "DID NOT END"
                print(f"{name}: {fired}, {end}", flush=True)
                if name not in seen or not (is_over and has_ended):
                    failed.append(name)
    if options.keep or failed:
        print(f"logs: {folder}")
    else:
        shutil.rmtree(folder)
    print(f"{len(played) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
