"""A password in ``--url`` is warned of by every command that has the option, whatever else becomes of the command."""

from __future__ import annotations

import sys

import pytest
import typer
from typer.testing import CliRunner

from latchwork.cli.main import application

PASSWORD = "hush-9f3a"
#: The variable of commands whose URL is the address of an API.
API = "LATCHWORK_WORKFLOWS_URL"
NOBODY = f"etcd://app:{PASSWORD}@127.0.0.1:1/x?connect_timeout_s=0.05"


def commands(group, path=()):
    """Yield the words of each command that takes the URL of a store, with values for its required arguments."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif any("--url" in parameter.opts and parameter.envvar != API for parameter in command.params):
            required = ["json:dumps" for parameter in command.params if parameter.required]
            yield (*path, name, *required)


APP = application()
ALL = list(commands(typer.main.get_command(APP)))


def test_most_commands_take_a_url():
    assert len(ALL) >= 8


@pytest.mark.parametrize("words", ALL, ids=lambda words: " ".join(words[:2]))
def test_every_command_warns_of_a_password_in_its_url_and_does_not_print_it(words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["latchwork", *words, "--url", NOBODY])
    ran = CliRunner().invoke(APP, [*words, "--url", NOBODY])
    assert ran.exit_code != 0
    assert ran.output.count("can be read by every user") == 1
    assert PASSWORD not in ran.output


@pytest.mark.parametrize("words", ALL[:1], ids=lambda words: " ".join(words[:2]))
def test_a_password_in_the_environment_is_not_warned_of(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["latchwork", *words])
    ran = CliRunner().invoke(APP, list(words), env={"LATCHWORK_URL": NOBODY})
    assert "can be read by every user" not in ran.output


def test_a_command_that_asks_an_api_refuses_the_url_of_a_store_without_printing_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(APP, ["workflows", "list", "--url", NOBODY])
    assert ran.exit_code == 2
    assert "--url is the address of an API" in ran.output
    assert PASSWORD not in ran.output
