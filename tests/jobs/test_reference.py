"""Every option of jobs, nodes, schedules and settings is in docs/reference/jobs.md, with its default and its unit."""

from __future__ import annotations

import inspect as signatures
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from latchwork.jobs import Control, Cron, FixedDelay, Job, JobManager, Threads, inspect
from latchwork.jobs.metrics import PrometheusMetrics
from latchwork.jobs.settings import ClusterSettings, JobSettings
from latchwork.jobs.tracing import Tracing

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "jobs.md").read_text()
SWITCHES = {"enabled", "all_disabled", "default_enabled"}
REQUIRED = signatures.Parameter.empty
#: The page says what None comes to.
SAID_AS = {"labels": {}}


def table(heading, first):
    """The first table below a heading whose first column is called so: option to default, unit and meaning."""
    below = TEXT.partition(f"\n{heading}")[2]
    lines = below.partition(f"| {first} | default | unit | meaning |\n")[2].splitlines()[1:]
    found = {}
    for line in lines:
        if not line.startswith("|"):
            break
        option, default, unit, meaning = re.split(r"\s*\|\s*", line.strip("| "), maxsplit=3)
        found[option.strip("`")] = (default, unit, meaning)
    return found


def options_of(callable_):
    parameters = signatures.signature(callable_).parameters.values()
    return {each.name: each.default for each in parameters if each.name != "self"}


def job_options():
    """What a job has when nothing is given: the attributes of the class."""
    given = options_of(Job.__init__)
    return {name: REQUIRED if name in {"id", "work_pool", "run"} else getattr(Job, name) for name in given}


def shown(value):
    """A default as the page writes it."""
    if value is REQUIRED:
        return "required"
    if isinstance(value, Mapping):
        return f"`{dict(value)!r}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, FixedDelay):
        return f"`FixedDelay({value.delay_s})`"
    return "`Threads.whole()`" if value == Threads.whole() else f"`{value!r}`"


@pytest.mark.parametrize(
    ("heading", "first", "options"),
    [
        ("## `Job`", "option", job_options()),
        ("## `JobManager(", "option", options_of(JobManager.__init__)),
        (
            "### Schedules",
            "option of `Cron`",
            {k: v for k, v in options_of(Cron).items() if k not in {"expression", "tz"}},
        ),
    ],
    ids=["Job", "JobManager", "Cron"],
)
def test_the_reference_has_every_option_with_its_default_and_its_unit(heading, first, options):
    told = table(heading, first)
    assert list(told) == list(options), "the options, in their order"
    for name, default in options.items():
        said, unit, meaning = told[name]
        assert said == shown(SAID_AS.get(name, default)), f"the default of {name}"
        assert (unit == "seconds") == name.endswith("_s"), f"the unit of {name}"
        assert meaning


@pytest.mark.parametrize(
    ("call", "settings"), [("change_job(job, ...)", JobSettings), ("change_cluster(...)", ClusterSettings)]
)
def test_the_reference_has_every_setting_that_may_change_while_the_cluster_runs(call, settings):
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{call}` |"))
    told = set(re.findall(r"`(\w+)`", row.split(" | ", 1)[1]))
    assert told == {each.name for each in fields(settings)} - SWITCHES


def test_every_setting_of_the_cluster_is_an_option_of_the_nodes_so_that_its_default_is_in_the_reference():
    options = {*options_of(JobManager.__init__), *options_of(Job.__init__)}
    assert {each.name for kind in (JobSettings, ClusterSettings) for each in fields(kind)} - SWITCHES <= options


@pytest.mark.parametrize(
    "callable_",
    [Cron, Control, Control.announce_restart, Control.wait_drained, inspect, PrometheusMetrics, Tracing],
    ids=lambda each: each.__qualname__,
)
def test_the_reference_writes_calls_with_their_defaults(callable_):
    name = callable_.__name__
    calls = re.findall(rf"`{name}\(([^`]*)\)", TEXT)
    for option, default in options_of(callable_).items():
        if default is REQUIRED or (callable_ is Cron and option != "tz"):
            continue
        said = f'{option}="{default}"' if isinstance(default, str) else f"{option}={default!r}"
        assert any(said in call for call in calls), f"{name}: {said} is in none of {calls}"
