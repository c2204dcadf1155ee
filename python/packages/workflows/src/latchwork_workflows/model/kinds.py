"""Our own task types as functions, for workflows in Python: ``rows = sql("postgresql://etl@db/facts", "SELECT 1")``.

What is written into a parameter as ``${name}`` is filled in where it runs; a ``Node``'s output may stand there too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from latchwork_workflows.model.builder import Node, add


def sql(
    connection: str,
    statement: str | Sequence[str],
    *,
    parameters: Mapping[str, Any] | None = None,
    password: str = "",
    rows: int | None = None,
    mail: Mapping[str, Any] | None = None,
    name: str | None = None,
    after: Iterable[Node] = (),
    **options: Any,
) -> Node:
    """Statements in one transaction; ``:day`` in them is bound to the parameter ``day``.

    Args:
        connection: a URL of SQLAlchemy without the password, or the name of a stored connection.
        statement: one, or several.
        parameters: further values for ``:name``.
        password: ``${secret:name}``.
        rows: so many of the last statement's rows are shown in the log; None: 20.
        mail: have all of them sent: ``{"channel": "ops", "to": ["boss@example.org"], "subject": "Orders"}``.
        name: of the task; ``sql``, numbered, by default.
        after: tasks to wait for.
        options: as for ``task``.
    """
    text = statement if isinstance(statement, str) else tuple(statement)
    given = {"connection": connection, "statement": text, "parameters": parameters, "password": password or None}
    return _add("sql", {**given, "rows": rows, "mail": mail}, name=name, after=after, **options)


def procedure(
    connection: str,
    procedure: str,
    arguments: Sequence[Any] = (),
    *,
    password: str = "",
    name: str | None = None,
    after: Iterable[Node] = (),
    **options: Any,
) -> Node:
    """A stored procedure, its arguments bound. Arguments as for ``sql``."""
    given = {"connection": connection, "procedure": procedure, "arguments": arguments, "password": password or None}
    return _add("procedure", given, name=name, after=after, **options)


def http(
    url: str,
    *,
    method: str = "GET",
    name: str | None = None,
    after: Iterable[Node] = (),
    headers: Mapping[str, str] | None = None,
    body: str | None = None,
    json_body: Any = None,
    success: Sequence[int] | None = None,
    contains: str | None = None,
    silent_s: float | None = None,
    **options: Any,
) -> Node:
    """One request. Arguments as the parameters of the type ``http``; options as for ``task``.

    ``silent_s`` is its parameter ``timeout_s``, the seconds that the server may be silent: the option of that name is
    how long an attempt may take.
    """
    given = {
        "url": url,
        "method": method,
        "headers": headers,
        "body": body,
        "json_body": json_body,
        "success": success,
        "contains": contains,
        "timeout_s": silent_s,
    }
    return _add("http", given, name=name, after=after, **options)


def spark(
    application: str,
    *,
    params: Mapping[str, Any] | None = None,
    name: str | None = None,
    after: Iterable[Node] = (),
    **options: Any,
) -> Node:
    """An application for ``spark-submit``; ``params`` are further parameters of the type ``spark``."""
    return _add("spark", {**(params or {}), "application": application}, name=name, after=after, **options)


def mapreduce(
    jar: str,
    *,
    params: Mapping[str, Any] | None = None,
    name: str | None = None,
    after: Iterable[Node] = (),
    **options: Any,
) -> Node:
    """A job for ``hadoop jar``; ``params`` are further parameters of the type ``mapreduce``."""
    return _add("mapreduce", {**(params or {}), "jar": jar}, name=name, after=after, **options)


def of_type(
    type_: str,
    params: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    after: Iterable[Node] = (),
    **options: Any,
) -> Node:
    """A task of any type, by its name: one that an installed package adds.

    Args:
        type_: what ``type:`` says in YAML.
        params: of the type.
        name: of the task; the type's, numbered, by default.
        after: tasks to wait for.
        options: as for ``task``.
    """
    return _add(type_, params or {}, name=name, after=after, **options)


def noop(*, name: str | None = None, after: Iterable[Node] = (), **options: Any) -> Node:
    """Nothing: a place where branches meet."""
    return _add("noop", {}, name=name, after=after, **options)


def _add(type_: str, given: Mapping[str, Any], **options: Any) -> Node:
    return add(type_, {key: value for key, value in given.items() if value is not None}, **options)
