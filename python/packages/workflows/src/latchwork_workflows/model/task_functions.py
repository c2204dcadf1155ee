"""Built-in task types as functions, for workflows in Python: ``rows = sql("postgresql://etl@db/facts", "SELECT 1")``.

``${name}`` in a parameter is filled in when the task runs. An output of a ``Node`` can be used too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from latchwork_workflows.model.builder import Node, add_task


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
    """Return a task that runs SQL statements in one transaction. Parameters of the run are bound as ``:name``.

    Args:
        connection: A SQLAlchemy URL without password, or the name of a stored connection.
        statement: One or more statements.
        parameters: Additional values for ``:name``.
        password: ``${secret:name}``.
        rows: The number of rows of the last statement to show in the log. None: 20.
        mail: Mail all rows: ``{"channel": "ops", "to": ["boss@example.org"], "subject": "Orders"}``.
        name: The name of the task. Default ``sql``, numbered.
        after: Tasks to wait for.
        options: As for ``task``.
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
    """Return a task that calls a stored procedure with bound arguments.

    The other arguments are those of ``sql``.
    """
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
    """Return a task that sends one HTTP request. The arguments are the parameters of the task type ``http``.

    Args:
        url: The URL.
        method: The HTTP method.
        name: The name of the task. Default ``http``, numbered.
        after: Tasks to wait for.
        headers: Headers of the request.
        body: Text to send.
        json_body: JSON value to send.
        success: Status codes that count as success.
        contains: Text that the response must contain.
        silent_s: Seconds to wait while the server sends nothing. The option ``timeout_s`` limits the whole attempt
            instead.
        options: As for ``task``.
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
    """Return a task that submits an application with ``spark-submit``.

    Args:
        application: A jar or a Python file: a path or a URL that ``spark-submit`` accepts.
        params: Further parameters of the task type ``spark``.
        name: The name of the task. Default ``spark``, numbered.
        after: Tasks to wait for.
        options: As for ``task``.
    """
    return _add("spark", {**(params or {}), "application": application}, name=name, after=after, **options)


def mapreduce(
    jar: str,
    *,
    params: Mapping[str, Any] | None = None,
    name: str | None = None,
    after: Iterable[Node] = (),
    **options: Any,
) -> Node:
    """Return a task that submits a job with ``hadoop jar``.

    Args:
        jar: Path of the jar with the job.
        params: Further parameters of the task type ``mapreduce``.
        name: The name of the task. Default ``mapreduce``, numbered.
        after: Tasks to wait for.
        options: As for ``task``.
    """
    return _add("mapreduce", {**(params or {}), "jar": jar}, name=name, after=after, **options)


def of_type(
    type_: str,
    params: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    after: Iterable[Node] = (),
    **options: Any,
) -> Node:
    """Return a task of any type, including types of installed packages.

    Args:
        type_: The name of the type, as in YAML.
        params: The parameters of the type.
        name: The name of the task. Default the name of the type, numbered.
        after: Tasks to wait for.
        options: As for ``task``.
    """
    return _add(type_, params or {}, name=name, after=after, **options)


def noop(*, name: str | None = None, after: Iterable[Node] = (), **options: Any) -> Node:
    """Return a task that does nothing. It can join branches, for example."""
    return _add("noop", {}, name=name, after=after, **options)


def _add(type_: str, given: Mapping[str, Any], **options: Any) -> Node:
    return add_task(type_, {key: value for key, value in given.items() if value is not None}, **options)
