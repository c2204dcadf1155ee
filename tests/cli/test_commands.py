"""Commands are listed without being loaded, loaded alone when called, and added by other distributions."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import typer

from latchwork.cli import options
from latchwork.cli.commands import CommandSpec, import_object, list_commands
from latchwork.cli.main import application
from latchwork.store import URL_VARIABLE

LATCHWORK = Path(sysconfig.get_path("scripts")) / "latchwork"
ADD_ON = """\
from latchwork.cli.commands import CommandSpec
COMMAND = CommandSpec("addon_commands:greet", "Greet the cluster")
"""
ADD_ON_COMMANDS = """\
from latchwork.cli.options import command
from latchwork.errors import WaitTimeout

@command("latchwork greet")
def greet(name: str) -> None:
    '''Greet the cluster. Nothing is written.'''
    if name == "nobody":
        raise WaitTimeout("nobody answered")
    print("hello", name)
"""


@pytest.fixture
def with_add_on(tmp_path):
    """The environment of a process in which another distribution with a command is installed."""
    (tmp_path / "addon.py").write_text(ADD_ON)
    (tmp_path / "addon_commands.py").write_text(ADD_ON_COMMANDS)
    info = tmp_path / "addon-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: addon\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[latchwork.commands]\ngreet = addon:COMMAND\nstatus = addon:COMMAND\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def ran(*words, **options):
    return subprocess.run([LATCHWORK, *words], capture_output=True, text=True, timeout=120, check=False, **options)


def loaded_by(*words):
    """The modules that a process has loaded which ran the command line with these words."""
    script = (
        f"import sys; sys.argv = ['latchwork', *{words!r}]\n"
        "from latchwork.cli.entry import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name", list_commands())
def test_the_list_of_commands_has_the_first_sentence_of_each_docstring(name):
    spec = list_commands()[name]
    found = import_object(spec.place)
    text = found.info.help if isinstance(found, typer.Typer) else found.__doc__
    assert options.get_first_sentence(text) == spec.summary


def test_the_parser_and_the_store_read_the_same_variable():
    assert options.URL_VARIABLE == URL_VARIABLE


def test_the_version_loads_no_parser():
    assert not {"typer", "rich", "logging", "latchwork.errors"} & loaded_by("--version")


def test_help_loads_no_command_and_no_store():
    loaded = loaded_by("--help")
    places = {spec.place.partition(":")[0] for spec in list_commands().values()}
    assert "latchwork.cli.commands" in loaded
    assert not {*places, "latchwork.store", "latchwork.cli.text", "rich"} & loaded


def test_a_command_of_latchwork_runs_next_to_a_distribution_that_cannot_be_loaded(with_add_on, tmp_path):
    (tmp_path / "addon.py").write_text("raise ImportError('built for another Python')")
    assert ran("tree", "--help", env=with_add_on).returncode == 0
    assert "built for another Python" in ran("greet", "world", env=with_add_on).stderr


def test_a_command_of_another_distribution_is_listed_and_not_loaded(with_add_on):
    script = (
        "import sys; from typer.testing import CliRunner; from latchwork.cli.main import application\n"
        "print(CliRunner().invoke(application(), ['--help']).output); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], env=with_add_on, capture_output=True, text=True, check=True)
    assert "  greet      Greet the cluster\n" in done.stdout
    assert "addon_commands" not in done.stdout.splitlines()[-1].split()


def test_a_command_of_another_distribution_runs_and_ends_as_all_do(with_add_on):
    assert ran("greet", "world", env=with_add_on).stdout == "hello world\n"
    failed = ran("greet", "nobody", env=with_add_on)
    assert (failed.returncode, failed.stderr) == (1, "error: nobody answered\n")


def test_no_other_distribution_replaces_a_command_of_latchwork(with_add_on):
    assert "Show a job cluster" in ran("--help", env=with_add_on).stdout
    assert "Show a job cluster" in ran("status", "--help", env=with_add_on).stdout


def test_a_command_that_nothing_has_is_refused_with_those_that_are_like_it():
    done = ran("stauts")
    assert done.returncode == 2
    assert "No such command 'stauts'. Did you mean 'status'" in done.stderr


def test_each_command_is_loaded_once():
    commands = typer.main.get_command(application()).commands
    assert commands["tree"] is commands["tree"]
    assert CommandSpec("latchwork.cli.screens.tree:tree", "").load("tree").name == "tree"
