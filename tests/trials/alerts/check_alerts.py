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
from typing import Any

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
import os, threading, time
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
    context.wait_for_stop(600)


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
        lock, lost = Lock(store, "orders"), threading.Event()
        PrimitiveMetrics().watch("orders", lock)
        lock.on_lost(lost.set)
        while True:
            try:
                with lock:
                    lost.wait()
            except latchwork.errors.LatchworkError:
                time.sleep(1)
            lost.clear()


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
        running: The process; None before the first start.
        is_stopped: Whether it is not meant to run now.
    """

    words: list[str]
    port: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None
    is_stopped: bool = True


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
            process.is_stopped = False
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
        self.processes[name].is_stopped = True
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
        rules = re.sub(r"\[\d+m\]", "[30s]", rules)
        rules = (
            rules.replace("offset 10m", "offset 30s")
            .replace("_seconds > 60", "_seconds > 4")
            .replace("severity", "level")
        )
        (self.folder / "alerts.yml").write_text(rules)
        targets: dict[str, list[str]] = {}
        for name, process in self.processes.items():
            if process.port is not None:
                targets.setdefault(name.partition("-")[0], []).append(f"127.0.0.1:{process.port}")
        jobs: list[dict[str, Any]] = [
            {"job_name": f"latchwork-{role}", "honor_labels": True, "static_configs": [{"targets": found}]}
            for role, found in targets.items()
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
        ended = {f"127.0.0.1:{process.port}" for process in self.processes.values() if process.is_stopped}
        return {
            each["labels"]["alertname"]
            for each in found
            if each["state"] == "firing"
            and not (each["labels"]["alertname"] == "LatchworkTargetDown" and each["labels"]["instance"] in ended)
        }

    def metric(self, name: str, metric: str) -> float | None:
        """Return a metric of a process; None if it has none now."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.processes[name].port}/metrics", timeout=5) as answer:
                found = re.search(rf"^{metric}(?:{{.*}})? (\S+)$", answer.read().decode(), re.MULTILINE)
        except OSError:
            return None
        return None if found is None else float(found[1])

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
        _, token = DatabaseAccounts(database).create_token("prometheus", "metrics", by="check_alerts")
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


def run_tasks(made: World, function: str = "wait", count: int = 2) -> None:
    """Submit tasks to the executor and wait until they run."""
    submit(made, function, count)
    if not made.wait_until(lambda: made.metric("executor", "latchwork_executor_running") == count, 60.0):
        raise RuntimeError(f"{count} tasks {function} do not run")


def cancel_all(made: World) -> None:
    """Cancel all tasks of the executor, also while they run."""
    for each in json.loads(made.run("executor", "tasks", "--json"))["tasks"]:
        made.run("executor", "cancel", each["id"], "--interrupt")


def run_plan(made: World, count: int = 2) -> None:
    """Start a plan of tasks, and wait until they run."""
    script = (
        "import os, latchwork, app; from latchwork.plans import Plans\n"
        "with latchwork.connect(os.environ['LATCHWORK_URL']) as store:\n"
        f"    with Plans(store).new('waits') as plan:\n        [plan.add(app.wait) for _ in range({count})]\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], cwd=made.folder, env={**os.environ, "LATCHWORK_URL": made.url}, check=True
    )
    if not made.wait_until(lambda: made.metric("plans", "latchwork_plans_running") == count, 60.0):
        raise RuntimeError(f"the {count} tasks of the plan do not run")


def remove_plans(made: World) -> None:
    """Remove all plans."""
    for each in json.loads(made.run("plans", "list", "--json"))["plans"]:
        made.run("plans", "rm", each["plan"])


def recover_runs(made: World) -> None:
    """Retry the failed runs of the workflow."""
    made.turn_off("flow-fails")
    for each in json.loads(made.run("workflows", "runs", "--state", "failure", "--json"))["runs"]:
        made.run("workflows", "recover", str(each.get("id") or each.get("run")))


Step = Callable[[World], object]


@dataclass(frozen=True)
class Play:
    """Alerts that one fault makes fire. Plays do not need each other.

    Attributes:
        alerts: The alerts, without "Latchwork".
        breaks: Makes them fire.
        remedies: The remedy of their runbooks.
        cleans: Removes what the play needed and no longer needs once the alerts have ended.
    """

    alerts: tuple[str, ...]
    breaks: Step
    remedies: Step
    cleans: Step = lambda _: None

    @property
    def names(self) -> set[str]:
        """The names of the alerts."""
        return {f"Latchwork{each}" for each in self.alerts}


PLAYS = [
    Play(("TargetDown",), lambda w: w.signal("app", signal.SIGKILL), lambda w: w.start("app")),
    Play(("JobFails",), lambda w: w.turn_on("fail"), lambda w: w.turn_off("fail")),
    Play(
        ("JobDoesNotRun",), lambda w: w.run("jobs", "disable", "second"), lambda w: w.run("jobs", "enable", "second")
    ),
    Play(("WorkPoolUnreadable",), lambda w: w.turn_on("bad-pool"), lambda w: w.turn_off("bad-pool")),
    Play(
        ("RebalanceFails",),
        lambda w: w.turn_on("bad-strategy", "more-items-1"),
        lambda w: w.turn_off("bad-strategy", "more-items-1"),
    ),
    Play(("TwoManagers",), lambda w: w.start("other-jobs"), lambda w: w.stop("other-jobs")),
    Play(("ExecutorTasksDead",), kill_workers, drop_letters),
    Play(
        ("ExecutorSaturated",),
        run_tasks,  # in both slots
        lambda w: w.start("executor-2"),
        lambda w: (cancel_all(w), w.stop("executor-2")),
    ),
    Play(("PlansSaturated",), run_plan, lambda w: w.start("plans-2"), lambda w: (remove_plans(w), w.stop("plans-2"))),
    Play(
        ("ExecutorClaimsLost", "PlanClaimsLost", "SessionLost", "PrimitiveLost"),
        lambda w: (run_tasks(w), run_plan(w), freeze(w, "executor", "plans", "app", "jobs", seconds=20)),
        lambda _: None,  # the processes go on
        lambda w: (cancel_all(w), remove_plans(w)),
    ),
    Play(
        ("ExecutorTasksStuck",),
        lambda w: (w.turn_on("stuck"), run_tasks(w, "ignore_cancel", 1), cancel_all(w)),
        lambda w: (w.stop("executor"), w.start("executor")),
        lambda w: w.turn_off("stuck"),
    ),
    Play(("WorkerGroupRestarts",), lambda w: w.turn_on("exit-1"), lambda w: w.turn_off("exit-1")),
    Play(
        ("WorkerGroupWaits",),
        lambda w: w.start("host-1"),
        lambda w: w.start("host-2"),
        lambda w: (w.stop("host-1"), w.stop("host-2")),
    ),
    Play(
        ("WorkflowsRunsFail",),
        lambda w: (w.turn_on("flow-fails"), w.run("workflows", "start", "flow")),
        recover_runs,
    ),
    Play(
        ("WorkflowsSaturated",),
        lambda w: (w.turn_on("flow-waits"), w.run("workflows", "start", "flow")),
        lambda w: w.start("worker-2"),
        lambda w: (w.turn_off("flow-waits"), w.stop("worker-2")),
    ),
    Play(("WorkflowsNoWorkers",), lambda w: w.stop("worker"), lambda w: w.start("worker")),
    Play(
        ("WorkflowsShardsWithoutOwner", "WorkflowsCommandsWait"),
        lambda w: (w.stop("master"), w.run("workflows", "start", "flow", check=False)),
        lambda w: w.start("master"),
    ),
    Play(
        ("StoreUnavailable", "NodeUnhealthy", "NoManager", "LocksRunOut", "ExecutorWorkerUnhealthy",
         "PlanWorkerUnhealthy", "WorkflowsMasterUnhealthy", "WorkflowsWorkerUnhealthy", "WorkflowsStoreUnreachable"),
        lambda w: w.etcd.pause(),
        lambda w: w.etcd.resume(),
    ),
]  # fmt: skip


def play_alerts(made: World, play: Play, timeout_s: float) -> list[str]:
    """Make the alerts of a play fire, apply the remedy, and return the alerts that did not fire or did not end."""
    if not made.wait_until(lambda: not made.firing() & play.names, timeout_s):
        print(f"{', '.join(sorted(made.firing() & play.names))}: fired already")
        return sorted(play.names)
    seen: dict[str, float] = {}
    began = time.monotonic()
    play.breaks(made)

    def has_fired() -> bool:
        for name in made.firing() & play.names:
            seen.setdefault(name, time.monotonic() - began)
        return set(seen) == play.names

    made.wait_until(has_fired, timeout_s)
    play.remedies(made)
    began_remedy = time.monotonic()
    made.wait_until(lambda: not made.firing() & play.names, timeout_s)
    ended_s, left = time.monotonic() - began_remedy, made.firing()
    for name in sorted(play.names):
        fired = f"fired after {seen[name]:.0f} s" if name in seen else "DID NOT FIRE"
        end = "DID NOT END" if name in left else f"ended {ended_s:.0f} s after the remedy"
        print(f"{name}: {fired}, {end}", flush=True)
    play.cleans(made)
    return [name for name in sorted(play.names) if name not in seen or name in left]


def main() -> int:
    """Play all alerts and print what happened."""
    rules = yaml.safe_load(RULES.read_text())["groups"]
    known = {rule["alert"] for group in rules for rule in group["rules"]}
    played = {name for play in PLAYS for name in play.names}
    if known != played:
        print(f"without a play, or without a rule: {', '.join(sorted(known ^ played))}")
        return 1
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        action="append",
        metavar="ALERT",
        choices=sorted(known),
        help="an alert; the other alerts of its fault are played, too. May be given several times (default: all)",
    )
    parser.add_argument("--prometheus", type=Path, default=ROOT / ".venv/operate/usr/bin/prometheus")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="seconds for each change (default: 120)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    options = parser.parse_args()
    plays = [play for play in PLAYS if not options.only or play.names & set(options.only)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # close what runs
    folder = Path(tempfile.mkdtemp(prefix="latchwork-alerts-"))
    with world(options.prometheus, folder) as made:
        time.sleep(20)  # each process has been scraped
        made.wait_until(lambda: not made.firing(), options.timeout_s)
        failed: list[str] = []
        for play in plays:
            try:
                failed += play_alerts(made, play, options.timeout_s)
            except Exception as error:  # the other plays go on
                print(f"{', '.join(sorted(play.names))}: {type(error).__name__}: {error}", flush=True)
                failed += sorted(play.names)
    if options.keep or failed:
        print(f"logs: {folder}")
    else:
        shutil.rmtree(folder)
    print(f"{sum(len(play.names) for play in plays) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
