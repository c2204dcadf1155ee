"""The files of docs/operate, and the commands in them."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / "docs" / "operate"
UNITS = sorted((FOLDER / "systemd").glob("*.service"))
COMPOSE = yaml.safe_load((FOLDER / "container" / "compose.yml").read_text())


def read_unit(path):
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.optionxform = str
    found.read_string(path.read_text())
    return found


def environment(path):
    """The variables of an environment file, with those that it proposes in comments."""
    lines = [line.removeprefix("#") for line in path.read_text().splitlines() if not line.startswith("# ")]
    return dict(line.split("=", 1) for line in lines if line)


def command_of(service, instead=None):
    """The words of a unit after the name of the program; ``instead`` has other values of variables."""
    env = environment(FOLDER / "systemd" / Path(service["EnvironmentFile"]).name) | (instead or {})
    command = service["ExecStart"].replace("%i", "n1")
    for name, value in env.items():
        command = command.replace(f"${{{name}}}", value)
    assert "${" not in command, "each variable is in the environment file"
    program, *words = shlex.split(command)
    assert program == "/opt/app/venv/bin/latchwork"
    return words
