"""Options that several commands share, and what is said about them in one place."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from latchwork.backends.url import find_spec, parse_url
from latchwork.cli.outcome import UsageError, set_debugging
from latchwork.store import URL_VARIABLE

_PASSWORD = re.compile(r"://[^/?#@]*:[^/?#@]+@")


def _warned_of(url: str | None) -> str | None:
    """The URL itself; warns of a password in the command line, which every user of the machine can read."""
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
        callback=_warned_of,
        help="The store: etcd://host:2379/root, zk://host:2181/root or sqlite:///file.db?root=root.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug", callback=set_debugging, help="Show tracebacks and the library's log; also with LATCHWORK_DEBUG=1."
    ),
]


def wanted_url(url: str | None) -> str:
    """The URL a command works on.

    Raises:
        UsageError: there is none.
    """
    if not url:
        raise UsageError(f"no URL was given; add --url URL or set {URL_VARIABLE}, for example sqlite:///latchwork.db")
    return url


def missing_file(url: str) -> str | None:
    """The store's file when the URL names one that does not exist: looking at it must not create it."""
    parsed = parse_url(url)
    in_file = find_spec(parsed.scheme).location == "file"
    return parsed.path if in_file and parsed.path and not Path(parsed.path).exists() else None


def examples(*lines: str) -> str:
    """The epilog of a command: commands to try, each on its own line, not wrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
