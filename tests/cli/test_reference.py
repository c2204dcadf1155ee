"""Every option of every command is in docs/reference/cli.md, with its default and its unit."""

from __future__ import annotations

import functools
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest
import typer

from latchwork.cli.main import application

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "cli.md"
#: Of all commands; they have a table of their own at the top of the page.
COMMON = {"--url", "--json", "--debug", "--help", "--version"}
#: What a table may say for an option that has no value of its own.
NO_VALUE = {"not set", "none", "off", "required", "all jobs"}
#: Defaults that are worked out when the command runs, and that its help does not name.
WORKED_OUT = {("demo", "--url"), ("bench cluster", "--url")}


def commands(command, path=()):
    """Every command with its name as it is typed."""
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, each in command.commands.items():
        if not each.hidden:  # the names that some had before
            yield from commands(each, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(application())))


@functools.cache
def rows(command):
    """Option to its default and its row, of the tables in the section of a command."""
    found = {}
    heading, wanted = "", {command, command.split()[0]}
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = [cell.strip() for cell in line.split("|")]
        if wanted & set(heading.split(" and ")) and len(cells) > 4 and cells[1].startswith("`-"):
            for option in cells[1].replace("`", "").split(", "):
                found[option.split()[0]] = (cells[2].strip("`"), line)
    return found


def shown(default):
    """A default as the page writes it."""
    if isinstance(default, Enum):
        default = default.value
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, (int, float)):
        return f"{default:,g}" if isinstance(default, float) else f"{default:,}"
    return default


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_has_every_option_of_a_command_with_its_default_and_its_unit(command):
    told = rows(command)
    for option in COMMANDS[command].params:
        names = [name for name in (*option.opts, *option.secondary_opts) if name.startswith("-")]
        if not names or (set(names) & COMMON and names[0] not in told):
            continue
        for name in names:
            assert name in told, f"{command} {name} is not in {PAGE.name}"
            default, row = told[name]
            if option.default is None:
                named = f"[default: {default}]" in (option.help or "")
                assert default in NO_VALUE or named or (command, name) in WORKED_OUT
            else:
                assert default == shown(option.default), f"{command} {name}: {row}"
            if name.endswith("-s"):
                assert "seconds" in row, f"{command} {name} has no unit: {row}"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_names_no_option_that_a_command_of_its_section_does_not_have(command):
    of_section = {
        name
        for other, each in COMMANDS.items()
        if rows(other).keys() == rows(command).keys()
        for option in each.params
        for name in (*option.opts, *option.secondary_opts)
    }
    assert rows(command).keys() <= of_section | COMMON


def test_the_options_of_all_commands_have_a_table_of_their_own():
    text = PAGE.read_text()
    assert all(f"| `{name}" in text for name in COMMON)


def test_every_command_is_listed_at_the_top_of_the_page():
    top = PAGE.read_text().partition("## ")[0]
    for command in COMMANDS:
        words = command.split()
        assert f"`latchwork {words[0]}" in top
        assert f"`{words[-1]}" in top or f" {words[-1]}" in top, command


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_tells_what_each_option_does_and_the_unit_of_a_time(command):
    for option in COMMANDS[command].params:
        text = option.help or ""
        assert len(text) > 10, f"{command} {option.name} has no help"
        if option.name.endswith("_s"):
            assert "econds" in text, f"{command} {option.name} does not say its unit: {text}"


def test_the_tables_of_options_are_those_that_the_table_in_the_code_makes():
    check = [sys.executable, "scripts/make_reference", "--check"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
