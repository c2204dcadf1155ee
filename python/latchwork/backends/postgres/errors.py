"""Conversion of PostgreSQL's errors to latchwork's errors."""

from __future__ import annotations

from psycopg import pq

from latchwork.errors import (
    AuthenticationFailed,
    ConnectFailed,
    LatchworkError,
    PermissionDenied,
    QuotaExceeded,
    StoreFull,
    TransactionTooLarge,
    Unavailable,
)

#: What our own functions raise: a key below one that is bound to a session, and no number left.
NOT_A_LEAF = "LW001"
NO_NUMBER_LEFT = "LW002"

_READ_ONLY = "25006"
#: Nothing is wrong with the statement: the next try may succeed.
_PASSING = {"40001", "40P01", _READ_ONLY, "55P03"}
#: The server refuses the account or the database, so a retry fails too. libpq gives no codes while it connects.
_REFUSED = ("authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry", "not permitted")


class ConnectionBroken(Exception):
    """The connection was lost or the server did not answer in time. The statements may or may not have been
    executed.
    """


class NoAnswer(ConnectionBroken):
    """The server did not answer before the deadline."""


def choose_informative_error(earlier: Exception | None, later: Exception) -> Exception:
    """Return the later of two errors, or the earlier one if the later one is only a timeout."""
    return earlier if earlier is not None and isinstance(later, NoAnswer) else later


class ServerError(Exception):
    """An error that the server returned for a statement. The statement had no effect.

    Attributes:
        code: The five characters of its SQLSTATE. Empty while connecting.
        detail: The detail that the server adds to the message.
    """

    def __init__(self, message: str, code: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail

    @property
    def is_transient(self) -> bool:
        """Whether a retry may succeed."""
        return self.code in _PASSING

    @property
    def ends_connection(self) -> bool:
        """Whether a retry needs a new connection, because this server does not take writes."""
        return self.code == _READ_ONLY


def parse_result_error(result: pq.abc.PGresult) -> ServerError:
    """Return the error in a failed result of libpq.

    Raises:
        ConnectionBroken: The error ends the connection. A pooler that lost its connection to the server also reports
            this, and does not know whether the statement was executed.
    """

    def field(name: pq.DiagnosticField) -> str:
        return (result.error_field(name) or b"").decode(errors="replace")

    message = " ".join(field(pq.DiagnosticField.MESSAGE_PRIMARY).split())[:400]
    severity = field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or field(pq.DiagnosticField.SEVERITY)
    if severity in {"FATAL", "PANIC"}:
        raise ConnectionBroken(message)
    return ServerError(message, field(pq.DiagnosticField.SQLSTATE), field(pq.DiagnosticField.MESSAGE_DETAIL))


def parse_connect_error(message: str) -> Exception:
    """Return the error for a failed attempt to connect.

    It is a ``ServerError`` only if a retry would fail in the same way.

    Args:
        message: The message of libpq.
    """
    is_final = "unsupported startup parameter" in message or any(words in message for words in _REFUSED)
    return ServerError(message) if is_final else ConnectionBroken(message)


def is_refused_parameter(error: ServerError) -> bool:
    """Return whether a connection pooler refused a setting that PostgreSQL itself would accept."""
    return "unsupported startup parameter" in str(error)


def convert_connect_error(error: ServerError, server_name: str) -> LatchworkError:
    """Return latchwork's error for a server that refused a connection.

    Args:
        error: The error of the server.
        server_name: Name of the server, for the message.
    """
    said = str(error)
    if "permission denied" in said:
        return PermissionDenied(f"{server_name}: {said}; grant the account CONNECT on the database")
    if "database" in said and "does not exist" in said:
        return ConnectFailed(f"{server_name}: {said}; create it, or name another one in the connection URL")
    if any(words in said for words in _REFUSED):
        return AuthenticationFailed(
            f"{server_name} refused the account: {said}; check the user and password of the URL"
        )
    return ConnectFailed(f"{server_name}: {said}")


def translate_error(error: ServerError, description: str) -> LatchworkError:
    """Return latchwork's error for a refused statement, which had no effect.

    Args:
        error: The error of the server.
        description: A description of the call with its key, for the message.
    """
    return _caused(_build_error(error, description), error)


def unavailable_error(error: Exception, description: str) -> LatchworkError:
    """Return the ``Unavailable`` error for a call that was not completed in time.

    Args:
        error: The error of the last attempt.
        description: A description of the call with its key, for the message.
    """
    return _caused(Unavailable(f"PostgreSQL could not {description} in time ({error}); try again"), error)


def _build_error(error: ServerError, description: str) -> LatchworkError:
    code, said = error.code, str(error)
    if code == "42501":
        return PermissionDenied(
            f"the account may not {description} ({said}); see the reference of URLs for what it needs"
        )
    if code.startswith("28"):
        return AuthenticationFailed(f"PostgreSQL refused the account when asked to {description} ({said})")
    if code in {"53100", "53200"}:
        return StoreFull(f"PostgreSQL is out of space and could not {description} ({said}); free space on its disk")
    if code == NO_NUMBER_LEFT:
        return QuotaExceeded(
            f"could not {description}: all numbers below that parent have been used; use another parent"
        )
    if code.startswith("54"):
        return TransactionTooLarge(
            f"the request to {description} exceeds what PostgreSQL takes ({said}); write less at once"
        )
    if code in {"42P01", "3F000", "42883"}:
        return Unavailable(
            f"PostgreSQL could not {description}: its schema is not there any more ({said}); connect again"
        )
    return Unavailable(f"PostgreSQL could not {description} ({said}, SQLSTATE {code}); try again")


def _caused(converted: LatchworkError, error: Exception) -> LatchworkError:
    converted.__cause__ = error
    return converted
