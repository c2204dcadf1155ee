"""The files of docs/operate against the program: each parses, and each flag, metric and label in them exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import latchwork
from latchwork.cli.main import application
from latchwork.cli.outcome import USAGE
from latchwork.cli.probe import answer_node_request, answer_worker_request
from latchwork.executor import ExecutorWorker
from latchwork.jobs import Job, JobManager
from latchwork.jobs.metrics import PrometheusMetrics
from latchwork.primitives import Lock
from latchwork.primitives.metrics import PrimitiveMetrics
from latchwork.store.observe.metrics import StoreMetrics
from latchwork.tasks import Functions
from latchwork_workflows.api import server
from operate.files import COMPOSE, FOLDER, UNITS, command_of, read_unit

ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARDS = [json.loads(path.read_text()) for path in sorted((FOLDER / "dashboards").glob("*.json"))]
MANIFESTS = list(yaml.safe_load_all((FOLDER / "kubernetes" / "jobs.yml").read_text()))
FLEET = list(yaml.safe_load_all((FOLDER / "kubernetes" / "workflows.yml").read_text()))
RUNBOOKS = FOLDER / "runbooks"
#: Labels that Prometheus adds when it scrapes, and those of a histogram.
SCRAPED = {"instance", "job", "le"}


@pytest.fixture(scope="module")
def families():
    """Every sample that a node, its store and a watched primitive have, by name, with its labels."""
    registry = CollectorRegistry()
    job = Job("report", work_pool=["a"], run=print, schedule="@yearly")
    with latchwork.connect("memory://operate-files", observers=[StoreMetrics(registry=registry)]) as store:
        PrimitiveMetrics(registry=registry).watch("lock", lock := Lock(store, "lock"))
        with JobManager(store, "n1", job, observers=[PrometheusMetrics(registry)]), lock:
            found = {sample.name: set(sample.labels) for metric in registry.collect() for sample in metric.samples}
    # Those of the metrics that are absent as long as nothing is known.
    of_job = {"node", "job"}
    absent = {
        f"latchwork_{name}_timestamp_seconds" for name in ("last_start", "last_success", "last_failure", "next_start")
    }
    known = (Path(latchwork.__file__).parent / "jobs" / "metrics.py").read_text()
    assert all(name.removeprefix("latchwork_") in known for name in absent)
    of_worker = worker_metrics(latchwork.connect("memory://operate-files-2"))
    workers = {
        sample.name.replace("latchwork_x", f"latchwork_{system}"): set(sample.labels) if is_named else set()
        for system, is_named in (("executor", 1), ("plans", 1), ("workflows_worker", 0), ("workflows_master", 0))
        for metric in text_string_to_metric_families(of_worker)
        for sample in metric.samples
    }
    # Those of a server and of an agent: tests/workflows/web/test_metrics.py and tests/cli/test_probes.py read them.
    package = Path(latchwork.__file__).parent
    written = (package / "cli/systems/workers.py").read_text() + Path(server.__file__).read_text()
    others = {name: set() for name in re.findall(r'"(latchwork_(?:workers|workflows)_[a-z_]+)"', written)}
    more = {"up": {"job", "instance"}, "latchwork_lock_margin_seconds": {"node"}}
    return {**dict.fromkeys(absent, of_job), **more, **workers, **others, **found}


def worker_metrics(store):
    """Every metric of an executor worker, as the system ``x``."""
    with store, ExecutorWorker(store, "x", functions=Functions()) as worker:
        return answer_worker_request("x", worker, "/metrics", "main")[2].decode().partition("# HELP python_")[0]


def expressions():
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for dashboard in DASHBOARDS:
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield panel["title"], target["expr"]
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                yield variable["name"], variable["query"]["query"].replace("label_values(", "").replace(", node)", "")


@pytest.mark.parametrize(("what", "expression"), expressions())
def test_each_metric_and_label_in_a_rule_or_a_panel_exists(families, what, expression):
    names = re.findall(r"latchwork_\w+|\bup\b", re.sub(r'"[^"]*"', '""', expression))
    assert names, what
    for name in names:
        assert name in families, f"{what}: there is no metric {name}"
    labels = {label for name in names for label in families[name]} | SCRAPED
    for listed in (*re.findall(r"by \(([^)]*)\)", expression), *re.findall(r"\{([^}]*)\}", expression)):
        for label in re.findall(r"\w+", re.sub(r'"[^"]*"', "", listed)):
            assert label in labels, f"{what}: {name} has no label {label}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_rule_has_what_who_is_woken_needs(families, rule):
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["expr"].count("(") == rule["expr"].count(")")
    for text in (rule["annotations"]["summary"], rule["annotations"]["description"]):
        for label in re.findall(r"\$labels\.(\w+)", text):
            assert re.search(rf"by \([^)]*\b{label}\b", rule["expr"]) or "by (" not in rule["expr"], label
    page, _, anchor = rule["annotations"]["runbook_url"].removeprefix("docs/operate/").partition("#")
    section = (FOLDER / page).read_text().partition(f"\n### {rule['alert']}\n")[2].partition("\n### ")[0]
    assert anchor == rule["alert"].lower()
    for part in ("**Meaning.** ", "**Check.** ", "**Remedy.** "):
        assert part in section


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard["title"])
def test_each_panel_of_a_dashboard_has_a_place_and_a_number_of_its_own(dashboard):
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({str(panel["gridPos"]) for panel in panels}) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}


def parsed(words):
    """What `latchwork` makes of these words; refuses what it does not know."""
    command, words = typer.main.get_command(application()), list(words)
    name = ""
    while hasattr(command, "get_command"):
        name = words.pop(0)
        command = command.get_command(command.make_context(name, [], resilient_parsing=True), name)
        assert command is not None, name
    with command.make_context(name, words) as context:
        return context.params


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_unit_starts_its_role_with_options_that_exist(unit):
    service = read_unit(unit)["Service"]
    params = parsed(command_of(service))
    assert float(service["TimeoutStopSec"]) > (params.get("close_timeout_s") or params.get("drain_s") or 0.0)
    assert service["RestartPreventExitStatus"] == str(USAGE)
    assert read_unit(unit)["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize("name", [each for each, of in COMPOSE["services"].items() if of["image"] == "latchwork:demo"])
def test_service_of_the_compose_file_starts_its_role_with_options_that_exist(name):
    service = COMPOSE["services"][name]
    parsed(service["command"])
    for other, on in service["depends_on"].items():
        needed = COMPOSE["services"][other]
        assert on["condition"] == ("service_healthy" if "healthcheck" in needed else "service_completed_successfully")
    for volume in service["volumes"]:
        assert volume.partition(":")[0] in COMPOSE["volumes"]
    hosts = re.findall(r"(?:@|etcd://)(\w+)[:/]", " ".join(service["environment"].values()))
    assert set(hosts) == {"postgres", "etcd"} <= COMPOSE["services"].keys()


def test_only_this_machine_reaches_the_ports_of_the_compose_file_and_images_have_a_version():
    for name, service in COMPOSE["services"].items():
        assert re.search(r":(?!latest)[\w.]+$", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_units(tmp_path):
    for unit in UNITS:
        text = unit.read_text().replace("/opt/app/venv/bin/latchwork", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *sorted(map(str, tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("role", ["api", "master", "worker"])
def test_pods_of_workflows_start_their_role_and_are_probed_where_it_listens(role):
    (pod,) = [each["spec"]["template"]["spec"] for each in FLEET if each["metadata"]["name"] == f"workflows-{role}"
              and each["kind"] == "Deployment"]  # fmt: skip
    (container,) = pod["containers"]
    params = parsed([*container["command"][1:], *container["args"]])
    assert container["ports"][0]["containerPort"] in {params.get("probe_port"), params.get("port")}
    assert pod["terminationGracePeriodSeconds"] > (params.get("drain_s") or 0.0)
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_commands_in_runbooks_exist():
    for page in RUNBOOKS.glob("*.md"):
        for words in re.findall(r"`latchwork ([a-z][^`]*)`", page.read_text()):
            command = typer.main.get_command(application())
            for word in shlex.split(words):
                if not hasattr(command, "get_command"):
                    break
                command = command.get_command(command.make_context("x", [], resilient_parsing=True), word)
                assert command is not None, f"{page.name}: latchwork {words}"


def of_kind(kind):
    return next(each for each in MANIFESTS if each["kind"] == kind)


def test_the_pods_start_a_node_with_flags_that_there_are():
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {each["name"]: each.get("value", "latchwork-0") for each in container["env"]}
    words = [re.sub(r"\$\((\w+)\)", lambda m: env[m[1]], word) for word in container["args"]]
    assert container["command"] == ["latchwork"]
    params = parsed(words)
    assert params["node_id"] == "latchwork-0"
    assert params["probe_port"] == container["ports"][0]["containerPort"]
    assert pod["terminationGracePeriodSeconds"] > params["close_timeout_s"]


def test_the_probes_ask_for_paths_that_a_node_serves():
    (container,) = of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"]
    node = JobManager("memory://probes-of-pods", "n1", [])
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert answer_node_request(node, container[kind]["httpGet"]["path"])[0] in {200, 503}
    annotations = of_kind("StatefulSet")["spec"]["template"]["metadata"]["annotations"]
    assert answer_node_request(node, annotations["prometheus.io/path"])[0] == 200
    assert annotations["prometheus.io/port"] == str(container["ports"][0]["containerPort"])


def test_the_manifests_belong_together():
    pods = of_kind("StatefulSet")["spec"]
    labels = pods["template"]["metadata"]["labels"]
    for selector in (
        pods["selector"]["matchLabels"],
        of_kind("Service")["spec"]["selector"],
        of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ):
        assert selector == labels
    assert pods["serviceName"] == of_kind("Service")["metadata"]["name"]
    (container,) = pods["template"]["spec"]["containers"]
    assert container["envFrom"][0]["secretRef"]["name"] == of_kind("Secret")["metadata"]["name"]
    assert set(of_kind("Secret")["stringData"]) == {"LATCHWORK_URL"}


def test_each_file_of_the_folder_is_named_by_its_page():
    page = (FOLDER / "index.md").read_text()
    for path in FOLDER.iterdir():
        assert path.name == "index.md" or f"]({path.name}" in page, path.name
    for path in RUNBOOKS.iterdir():
        assert f"](runbooks/{path.name})" in page, path.name
    for name in re.findall(r"latchwork_\w+", page):
        assert name == "latchwork_" or any(name in text for _, text in expressions()), name
