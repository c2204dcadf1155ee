"""``sql``, ``procedure``, ``connect``: statements, a stored procedure, or a connection test, by SQLAlchemy.

A connection is a URL without a password, or the name of a stored connection. Values are bound by name and never written
into a statement. The driver must be installed in the worker's Python.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints, field_validator

from latchwork_workflows.types.base import Command, ParamsModel, RunInfo

_CALL = "sql.json"
#: File with the rows to mail.
ROWS = "rows.csv"
_PROGRAM = Path(__file__).with_name("programs") / "sql_program.py"
Statement = Annotated[str, StringConstraints(min_length=1, max_length=200_000)]
Procedure = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*){0,2}$", max_length=200)
]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
Address = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,253}$")]
Connection = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class SqlMail(ParamsModel):
    """A mail with the rows of a statement.

    Attributes:
        channel: Mail channel that sends the rows of the last statement: as a table, or above 64 kB as a CSV file.
        to: Recipients instead of those of the channel.
        subject: Subject instead of the default, which names workflow and task.
    """

    channel: Name
    to: Annotated[tuple[Address, ...], Field(max_length=100)] = ()
    subject: Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""


class SqlParams(ParamsModel):
    """Parameters of ``sql``.

    Attributes:
        connection: SQLAlchemy URL without the password, such as ``postgresql+psycopg://etl@db/warehouse``, or the name
            of a stored connection.
        password: Password to use if the URL has none: ``${secret:warehouse}``.
        statement: One statement, or several in one transaction. ``:day`` is bound to the parameter ``day``,
            ``:load_rows`` to the output ``rows`` of ``load``.
        parameters: Values for ``:name``, in addition to the parameters of the workflow.
        rows: Maximum number of rows of the last statement that the log shows.
        mail: Send all rows, up to 10 MB, after the task has succeeded. None: no mail.
    """

    connection: Connection
    password: str = ""
    statement: Statement | Annotated[tuple[Statement, ...], Field(min_length=1, max_length=100)]
    parameters: dict[str, Any] = Field(default_factory=dict)
    rows: Annotated[int, Field(ge=0, le=1000)] = 20
    mail: SqlMail | None = None

    @field_validator("statement")
    @classmethod
    def _binds(cls, statement: Any) -> Any:
        if "${" in str(statement):
            raise ValueError(
                "statements cannot contain references: write :day instead of ${day}, and its value is bound"
            )
        return statement


class ProcedureParams(ParamsModel):
    """Parameters of ``procedure``.

    Attributes:
        connection: As for ``sql``.
        password: As for ``sql``.
        procedure: Its name, with its schema if needed.
        arguments: Its arguments, in order.
    """

    connection: Connection
    password: str = ""
    procedure: Procedure
    arguments: tuple[Any, ...] = ()


class ConnectParams(ParamsModel):
    """Parameters of ``connect``.

    Attributes:
        connection: As for ``sql``.
        password: As for ``sql``.
    """

    connection: Connection
    password: str = ""


class Sql:
    """Runs statements in one transaction.

    Outputs: ``rows``, the number of rows returned or changed, and ``first``, the first row.
    """

    name: ClassVar[str] = "sql"
    params: ClassVar[type[ParamsModel]] = SqlParams
    connects: ClassVar[bool] = True
    quoted: ClassVar[frozenset[str]] = frozenset({"statement"})
    ignores_variables: ClassVar[bool] = True

    def command(self, params: SqlParams, run: RunInfo) -> Command:
        """Return a command that runs the statements. It reads them from a file, so that no password appears in a
        command line.
        """
        statements = [params.statement] if isinstance(params.statement, str) else list(params.statement)
        bound = {re.sub(r"[.-]", "_", name): value for name, value in run.values.items()}
        bound.update(params.parameters)
        return _command(run, params, statements, bound, params.rows, keeps=ROWS if params.mail is not None else "")


class StoredProcedure:
    """Calls a stored procedure. Output: ``first``, its results by name, if the database returns any."""

    name: ClassVar[str] = "procedure"
    params: ClassVar[type[ParamsModel]] = ProcedureParams
    connects: ClassVar[bool] = True
    quoted: ClassVar[frozenset[str]] = frozenset({"procedure"})
    ignores_variables: ClassVar[bool] = True

    def command(self, params: ProcedureParams, run: RunInfo) -> Command:
        """Return a command that calls the procedure with bound arguments."""
        names = [f"argument_{number}" for number, _ in enumerate(params.arguments)]
        call = f"CALL {params.procedure}({', '.join(f':{name}' for name in names)})"
        bound = dict(zip(names, params.arguments, strict=True))
        return _command(run, params, [call], bound, 20)


class Connect:
    """Opens a connection and closes it, to test whether a worker can connect.

    Output: ``server``, the kind and version of the server.
    """

    name: ClassVar[str] = "connect"
    params: ClassVar[type[ParamsModel]] = ConnectParams
    connects: ClassVar[bool] = True
    quoted: ClassVar[frozenset[str]] = frozenset()
    ignores_variables: ClassVar[bool] = True

    def command(self, params: ConnectParams, run: RunInfo) -> Command:
        """Return a command that opens and closes a connection without running a statement."""
        return _command(run, params, [], {}, 0)


def _command(
    run: RunInfo,
    params: SqlParams | ProcedureParams | ConnectParams,
    statements: list[str],
    bound: dict[str, Any],
    rows: int,
    *,
    keeps: str = "",
) -> Command:
    call = {
        "url": params.connection,
        "password": params.password,
        "statements": statements,
        "bound": bound,
        "rows": rows,
        "csv": f"{run.folder}/{keeps}" if keeps else "",
    }
    return Command(
        (run.python, str(_PROGRAM), f"{run.folder}/{_CALL}"),
        env={"PYTHONUNBUFFERED": "1"},
        files={_CALL: json.dumps(call).encode()},
        keeps=keeps,
    )
