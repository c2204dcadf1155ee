"""The decorator that makes a function a command, and options that several commands share."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer
from typer.models import OptionInfo

from latchwork.cli.outcome import UsageError, report_errors, set_debugging

F = TypeVar("F", bound=Callable[..., None])
#: `latchwork.store.URL_VARIABLE`, without loading that package, which takes longer than `--help`.
URL_VARIABLE = "LATCHWORK_URL"

_PASSWORD = re.compile(r"://[^/?#@]*:[^/?#@]+@")


def _warn_of_password(url: str | None) -> str | None:
    """Return the URL unchanged. If a URL on the command line contains a password, warn that other users can read it
    there.
    """
    if url and _PASSWORD.search(url) and any(url in argument for argument in sys.argv[1:]):
        typer.echo(
            "warning: a password in --url can be read by every user of this machine; "
            f"put the URL into {URL_VARIABLE}, or the password into a file named by ?password_file=",
            err=True,
        )
    return url


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar=URL_VARIABLE,
        metavar="URL",
        callback=_warn_of_password,
        help="The store: etcd://host:2379/root, zk://host:2181/root or sqlite:///file.db?root=root.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait.")]
DrainS = Annotated[
    float,
    typer.Option(min=0.0, help="Seconds that tasks have to end after SIGTERM or Ctrl-C, before they are stopped."),
]
SessionTtlS = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        show_default=False,
        help="Seconds after which others take over the tasks of a dead worker.  [default: that of the URL, else 10]",
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug", callback=set_debugging, help="Show tracebacks and the library's log; also with LATCHWORK_DEBUG=1."
    ),
]


def require_url(url: str | None) -> str:
    """Return the URL for a command: the one from its option, or otherwise from the environment.

    Args:
        url: Value of the option; None if it is not given.
    Raises:
        UsageError: No URL is given.
    """
    if not url:
        raise UsageError(f"no URL was given; add --url URL or set {URL_VARIABLE}, for example sqlite:///latchwork.db")
    return url


def parse_label(text: str) -> tuple[str, str]:
    """Split the value of ``--label`` into a name and a value.

    Raises:
        UsageError: The value is not of the form ``NAME=VALUE``.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--label {text!r} is not NAME=VALUE; for example, write --label gpu=yes")
    return name, value


def format_examples(*lines: str) -> str:
    """Format the examples at the end of a command's help text, one per line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def command(*lines: str) -> Callable[[F], F]:
    """Return a decorator for commands. It adds ``--debug``, examples in the help text, and exit codes for errors.

    Args:
        lines: The examples.
    """

    def make(function: F) -> F:
        made = report_errors(function)
        own = inspect.signature(function, eval_str=True)
        for each in own.parameters.values():
            _set_value_name(each)
        debug = Parameter("debug", Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
        made.__signature__ = own.replace(parameters=[*own.parameters.values(), debug])  # type: ignore[attr-defined]
        made.epilog = format_examples(*lines)  # type: ignore[attr-defined]
        return made

    return make


def _set_value_name(parameter: Parameter) -> None:
    """Set the placeholder for an option's value in the help text, such as `N` in `--workers N`."""
    if get_origin(parameter.annotation) is not Annotated:
        return
    kind, *about = get_args(parameter.annotation)
    kinds = set(get_args(kind) or [kind]) - {type(None)}
    for option in about:
        if isinstance(option, OptionInfo) and option.metavar is None and kinds <= {int, float, str}:
            word = parameter.name.upper() if str in kinds else "S" if parameter.name.endswith("_s") else "N"
            option.metavar = word


def add_commands(app: typer.Typer, **commands: Any) -> None:
    """Add commands to an application, in this order.

    Args:
        app: The application.
        commands: The commands, by the names by which they are called.
    """
    for name, each in commands.items():
        app.command(name, epilog=each.epilog, short_help=get_first_sentence(each.__doc__ or ""))(each)


def get_first_sentence(text: str) -> str:
    """Return the first sentence of a text, for the list of commands."""
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0].removesuffix(".")


def group(about: str, **commands: Any) -> typer.Typer:
    """Create a group of commands, such as `latchwork jobs`.

    Args:
        about: Description of the group.
        commands: The commands, by the names by which they are called, in this order.
    """
    app = typer.Typer(help=about, short_help=get_first_sentence(about), no_args_is_help=True, rich_markup_mode=None)
    add_commands(app, **commands)
    return app
