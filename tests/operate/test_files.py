"""The files of docs/operate against the program: each parses, and each flag, metric and label in them exists."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry

import latchwork
from latchwork.cli.main import application
from latchwork.cli.probe import answer
from latchwork.jobs import Job, JobManager
from latchwork.jobs.metrics import PrometheusMetrics
from latchwork.primitives import Lock
from latchwork.primitives.metrics import PrimitiveMetrics
from latchwork.store.observe.metrics import StoreMetrics

FOLDER = Path(__file__).parents[2] / "docs" / "operate"
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
MANIFESTS = list(yaml.safe_load_all((FOLDER / "kubernetes.yml").read_text()))
#: Labels that Prometheus adds when it scrapes, and those of a histogram.
SCRAPED = {"instance", "le"}


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
    return {**dict.fromkeys(absent, of_job), "latchwork_lock_margin_seconds": {"node"}, **found}


def expressions():
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"].replace("label_values(", "").replace(", node)", "")


@pytest.mark.parametrize(("what", "expression"), expressions())
def test_each_metric_and_label_in_a_rule_or_a_panel_exists(families, what, expression):
    names = re.findall(r"latchwork_\w+", expression)
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


def test_each_panel_of_the_dashboard_has_a_place_and_a_number_of_its_own():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({str(panel["gridPos"]) for panel in panels}) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}


def flags_of_run():
    command = typer.main.get_command(application()).commands["run"]
    return {name: option for option in command.params for name in option.opts}


def parsed(words):
    """What `latchwork run` makes of these words; refuses what it does not know."""
    assert words[0] == "run"
    command = typer.main.get_command(application()).commands["run"]
    return command.make_context("run", list(words[1:]), resilient_parsing=False).params


def unit():
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.optionxform = str
    found.read_string((FOLDER / "latchwork@.service").read_text())
    return found


def environment():
    lines = (FOLDER / "latchwork.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_unit_starts_a_node_with_flags_that_there_are():
    service = unit()["Service"]
    command = service["ExecStart"].replace("%i", "n1")
    for name, value in environment().items():
        command = command.replace(f"${{{name}}}", value)
    assert "${" not in command, "each variable is in latchwork.env"
    program, *words = shlex.split(command)
    assert program.endswith("/latchwork")
    params = parsed(words)
    assert (params["node_id"], params["target"]) == ("n1", environment()["LATCHWORK_JOBS"])
    assert float(service["TimeoutStopSec"]) > params["close_timeout_s"]
    assert unit()["Install"]["WantedBy"] == "multi-user.target"


def test_the_unit_is_not_started_again_when_its_call_is_wrong():
    from latchwork.cli.outcome import USAGE

    assert unit()["Service"]["RestartPreventExitStatus"] == str(USAGE)


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
        assert answer(node, container[kind]["httpGet"]["path"])[0] in {200, 503}
    annotations = of_kind("StatefulSet")["spec"]["template"]["metadata"]["annotations"]
    assert answer(node, annotations["prometheus.io/path"])[0] == 200
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
        assert path.name == "index.md" or f"]({path.name})" in page, path.name
    for name in re.findall(r"latchwork_\w+", page):
        assert name == "latchwork_" or any(name in text for _, text in expressions()), name
