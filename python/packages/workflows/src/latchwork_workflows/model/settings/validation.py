"""Validates connections, environments and parameters. Each problem has the path of its field. Pure.

No message contains a URL, because it may include a password.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from latchwork_workflows.errors import Problem
from latchwork_workflows.model.templates import iter_references
from latchwork_workflows.model.validate import BUILT_IN

#: Shorter than other names, because the name of the workflow that tests a connection includes it.
CONNECTION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", re.ASCII)
ENVIRONMENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
#: The maximum number of settings of one kind in one project.
MAX = 500
MAX_URL = 1000
MAX_VALUE = 10_000
MAX_VARIABLES_BYTES = 100_000
_SCHEME = re.compile(r"[a-z][a-z0-9_]*(\+[a-z0-9_]+)?://", re.ASCII)
_PASSWORD = re.compile(r"://[^/?#@]*:[^/?#]*@")
_UNSEEN = re.compile("[\x00-\x20\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_SECRET_KEYS = frozenset({"password", "passwd", "pwd", "sslpassword", "secret", "token", "access_token", "api_key"})
_SECRET_PART = re.compile(r"\b(pwd|password|passwd)\s*=", re.IGNORECASE)
_HELP = "store the password as a secret of the workers, and give its name"


def find_connection_problems(name: str, url: str, secret: str) -> Iterator[Problem]:
    """Yield a problem with its path for each invalid field of a connection.

    Args:
        name: Its name.
        url: Its SQLAlchemy URL without a password.
        secret: The name of its password.
    """
    if CONNECTION_NAME.fullmatch(name) is None:
        yield Problem("name", f"{name[:100]!r} is not a valid name; use up to 80 letters, digits, '_', '-' and '.'")
    wrong = find_url_problem(url)
    if wrong:
        yield Problem("url", wrong)
    if secret and ENVIRONMENT_NAME.fullmatch(secret) is None:
        yield Problem("secret", "this is not a valid name of a secret; use up to 100 letters, digits, '_', '-' and '.'")


def find_url_problem(url: str) -> str:
    """Return what is wrong with a connection URL, or an empty text if it is valid."""
    if not url.strip():
        return "this is required, such as postgresql+psycopg://etl@db/warehouse"
    if len(url) > MAX_URL:
        return f"it has {len(url):,} characters; at most {MAX_URL:,}"
    if _UNSEEN.search(url):
        return "it contains spaces or invisible characters; write them as %20 and the like"
    if "${" in url:
        return "a stored URL cannot contain references; write it in full"
    if _SCHEME.match(url) is None:
        return "it does not begin with a kind of database, such as postgresql+psycopg:// or sqlite:///"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return "this is not a SQLAlchemy URL; write kind://user@host:port/database"
    if parsed.password is not None or _PASSWORD.search(url):
        return f"it has a password, and passwords are not stored: {_HELP}"
    for key, value in parsed.normalized_query.items():
        if key.lower() in _SECRET_KEYS or any(_SECRET_PART.search(each) for each in value):
            return f"{key!r:.40} of it looks like a password, and passwords are not stored: {_HELP}"
    return ""


def find_environment_problems(name: str, variables: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem with its path for an invalid name of an environment and for each invalid variable."""
    if ENVIRONMENT_NAME.fullmatch(name) is None:
        yield Problem("name", f"{name[:100]!r} is not a valid name; use up to 100 letters, digits, '_', '-' and '.'")
    for key, value in variables.items():
        path = f"variables.{key[:100]}"
        if VARIABLE.fullmatch(key) is None:
            yield Problem(path, f"{key[:100]!r} is not a valid variable name; use letters, digits and underscores")
        elif key.startswith("LATCHWORK_"):
            yield Problem(path, "workers set variables of this name; use another name")
        elif not isinstance(value, str):
            yield Problem(path, "a variable must be text")
        else:
            wrong = _text_problem(value)
            if wrong:
                yield Problem(path, wrong)
    size = sum(
        len(key.encode("utf-8", "replace")) + len(str(each).encode("utf-8", "replace"))
        for key, each in variables.items()
    )
    if size > MAX_VARIABLES_BYTES:
        yield Problem("variables", f"they take {size:,} bytes; at most {MAX_VARIABLES_BYTES:,}")


def _text_problem(value: str) -> str:
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        return "it contains a NUL or half of a surrogate pair"
    try:
        list(iter_references(value))
    except ValueError as error:
        return str(error)
    return ""


def find_parameter_problems(name: str, value: Any) -> Iterator[Problem]:
    """Yield a problem with its path for an invalid name of a parameter and for each invalid part of its value."""
    if VARIABLE.fullmatch(name) is None:
        yield Problem(
            "name", f"{name[:100]!r} is not a valid variable name; use up to 100 letters, digits and underscores"
        )
    elif name in BUILT_IN:
        yield Problem("name", f"{name!r} is built in and cannot be replaced; use another name")
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, TypeError, RecursionError):
        yield Problem("value", "this is not valid JSON: surrogates must be paired, numbers finite, and nesting limited")
        return
    if size > MAX_VALUE:
        yield Problem("value", f"it takes {size:,} bytes; at most {MAX_VALUE:,}: each task gets all parameters")
    elif "\\u0000" in json.dumps(value):
        yield Problem("value", "it holds a NUL")
