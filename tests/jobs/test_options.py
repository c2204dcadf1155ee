"""The table of options: a row is all that a check, a setting, a flag and a docstring need."""

from __future__ import annotations

import inspect as signatures
from dataclasses import dataclass
from typing import Generic

import pytest
import typer
from typer.testing import CliRunner

from latchwork.cli.flags import add_flags, make_setting_flag, make_start_flag
from latchwork.jobs import ClusterSettings, Job, JobManager, JobSettings, Threads
from latchwork.jobs.options import (
    LABELS,
    SWITCH,
    THREADS,
    NodeRows,
    Unset,
    combine_options,
    create_default_options,
    create_number_type,
    document_options,
    get_option_rows,
    option_field,
    seconds_field,
)
from latchwork.jobs.settings import NODE_DEFAULTS, JobOptions, NodeOptions


@dataclass(frozen=True)
class Dummy(Generic[Unset]):
    nap_s: float | Unset = seconds_field(2.0, "that `run` sleeps", minimum=0.5)
    pause_s: float | None = seconds_field(None, "between two naps", none="for ever")
    threads: object = option_field(THREADS, Threads(1), "runs at a time")


def test_what_is_set_goes_before_the_code_and_what_is_not_set_does_not():
    assert combine_options(Dummy, Dummy(pause_s=0.0, threads=3), create_default_options(Dummy)) == Dummy(
        2.0, 0.0, Threads(3)
    )


@pytest.mark.parametrize("wrong", ["2", True, None, float("nan"), float("inf"), 0.4, -1])
def test_a_number_that_cannot_be_used_is_refused_by_the_name_of_its_row(wrong):
    with pytest.raises(ValueError, match=r"nap_s is .*; give a finite number of seconds, at least 0\.5"):
        get_option_rows(Dummy)[0].check(wrong)


def test_only_a_row_without_a_default_may_be_none():
    assert get_option_rows(Dummy)[1].check(None) is None
    with pytest.raises(ValueError, match="nap_s is None"):
        get_option_rows(Dummy)[0].check(None)


def test_values_are_kept_as_what_they_mean():
    assert type(create_number_type(0.0).check("x", 3)) is float
    given = {"gpu": "yes"}
    kept = LABELS.check("labels", given)
    given["gpu"] = "no"
    assert kept == {"gpu": "yes"}
    with pytest.raises(ValueError, match="labels is"):
        LABELS.check("labels", {"gpu": 1})
    with pytest.raises(ValueError, match="give true or false"):
        SWITCH.check("enabled", 1)


def command(flag):
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @add_flags(get_option_rows(Dummy), flag, before="last")
    def nap(*, first: int = 1, last: int = 2, **given: float | None) -> None:
        """Sleep."""
        typer.echo(f"{first} {last} {given}")

    return lambda *args: CliRunner().invoke(app, args)


def test_a_row_makes_a_flag_that_sets_it_and_what_is_not_given_is_none():
    run = command(make_setting_flag)
    assert run("--nap-s", "3").output == "1 2 {'nap_s': 3.0, 'pause_s': None, 'threads': None}\n"
    assert run("--nap-s", "0.1").exit_code == 2
    told = " ".join(run("--help").output.split())
    assert "Seconds that run sleeps; at least 0.5. [default if the code sets none: 2]" in told
    assert "[default if the code sets none: for ever]" in told
    assert told.index("--first") < told.index("--nap-s") < told.index("--pause-s") < told.index("--last")


def test_a_row_makes_a_flag_to_start_with_and_what_is_not_given_is_its_default():
    run = command(make_start_flag)
    assert run("--pause-s", "0", "--threads", "1").output == "1 2 {'nap_s': 2.0, 'pause_s': 0.0, 'threads': 1}\n"
    told = " ".join(run("--help").output.split())
    assert "Seconds that run sleeps; at least 0.5. [default: 2.0]" in told
    assert "Seconds between two naps. [default: for ever]" in told


def test_a_docstring_gets_its_rows_before_what_it_raises():
    @document_options(Dummy)
    class Sleeper:
        """Sleeps.

        Raises:
            ValueError: it cannot.
        """

    told = signatures.cleandoc(Sleeper.__doc__)
    assert "nap_s: seconds that run sleeps; at least 0.5\n" in told
    assert "pause_s: seconds between two naps; None is for ever\n" in told
    assert told.index("Attributes:") < told.index("nap_s") < told.index("Raises:") < told.index("it cannot")


@pytest.mark.parametrize(
    ("of", "table", "before"),
    [(Job, JobOptions, ["id", "work_pool", "run"]), (JobManager, NodeOptions, None)],
    ids=["Job", "JobManager"],
)
def test_the_arguments_are_those_of_the_table_in_its_order_and_the_docstring_tells_each(of, table, before):
    names = [each.name for each in get_option_rows(table)]
    parameters = list(signatures.signature(of.__init__).parameters)[1:]
    at = parameters.index(names[0])
    assert parameters[at : at + len(names)] == names
    assert before is None or parameters == [*before, *names]
    assert all(f"\n    {name}: " in of.__doc__ for name in names)


def test_the_defaults_of_a_node_and_of_a_job_are_those_of_the_table():
    given = signatures.signature(JobManager.__init__).parameters
    of_node = {each.name: each.default for each in get_option_rows(NodeOptions)}
    assert {name: {} if name == "labels" else given[name].default for name in of_node} == of_node
    assert [getattr(Job, each.name) for each in get_option_rows(JobOptions)] == [
        each.default for each in get_option_rows(JobOptions)
    ]


def test_nothing_is_set_unless_it_is_given():
    assert {*vars(JobSettings()).values(), *vars(ClusterSettings()).values()} == {None}
    assert NODE_DEFAULTS.with_settings(ClusterSettings()) == NODE_DEFAULTS


@pytest.mark.parametrize("option", get_option_rows(NodeRows), ids=lambda each: each.name)
def test_each_setting_of_the_cluster_reaches_the_options_of_a_node(option):
    assert getattr(NODE_DEFAULTS.with_settings(ClusterSettings(**{option.name: 7.0})), option.name) == 7.0
