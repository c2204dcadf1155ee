"""Settings of latchwork, some of which are secrets, are not shown in /proc/<pid>/environ."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
#: What the process shows and knows once its settings are hidden, what a child of its is given, and if it may be read.
LOOK = """
import ctypes, json, os, subprocess, sys
from latchwork.cli.environment import hide_environment, disable_process_inspection
hide_environment()
disable_process_inspection()
shown = open("/proc/self/environ", "rb").read().decode()
given = subprocess.run(["env"], capture_output=True, text=True).stdout
json.dump([shown, dict(os.environ), given, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)], sys.stdout)
"""
SETTINGS = {
    "LATCHWORK_SECRET_DB": "hunter2",
    "LATCHWORK_WORKFLOWS_DATABASE": "postgresql://flows:hunter2@db/flows",
    "LATCHWORK_URL": "etcd://flows:hunter2@e1/flows",
}


@pytest.fixture(scope="module")
def looked():
    env = {**os.environ, **SETTINGS, "LATCHWORK_CHILD": "a mark", "PLAIN": "plain"}
    done = subprocess.run([sys.executable, "-c", LOOK], env=env, capture_output=True, check=True)
    return json.loads(done.stdout)


def test_a_command_shows_no_settings_to_other_processes(looked):
    shown, *_ = looked
    assert "hunter2" not in shown
    assert not [each for each in shown.split("\0") if each.startswith("LATCHWORK_") and "CHILD" not in each]


def test_a_command_shows_the_rest_and_the_mark_by_which_it_is_found(looked):
    shown, *_ = looked
    assert {"LATCHWORK_CHILD=a mark", "PLAIN=plain"} <= set(shown.split("\0"))


def test_hidden_settings_stay_set_for_the_command_and_its_children(looked):
    _, known, given, _ = looked
    assert {name: known[name] for name in SETTINGS} == SETTINGS
    assert {f"{name}={value}" for name, value in SETTINGS.items()} <= set(given.split("\n"))


def test_a_node_refuses_to_be_read_by_processes_of_its_user(looked):
    assert looked[3] == 0


#: Runs the commands that are nodes as far as their first step, and says whether their process may be read then.
NODES = """
import ctypes
from latchwork_workflows.cli import nodes, serve
prctl = ctypes.CDLL(None).prctl
def resolve_home(*_):
    raise SystemExit(prctl(3, 0, 0, 0, 0))
nodes.resolve_home = serve.resolve_home = resolve_home
for command in (nodes.run_master, nodes.run_worker, serve.serve_all, serve.serve_api):
    prctl(4, 1, 0, 0, 0)
    try:
        command()
    except SystemExit as ended:
        print(command.__name__, ended.code)
"""


def test_every_command_that_holds_secrets_refuses_to_be_read_before_it_has_any():
    done = subprocess.run([sys.executable, "-c", NODES], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["run_master", "0", "run_worker", "0", "serve_all", "0", "serve_api", "0"], (
        done.stderr
    )
