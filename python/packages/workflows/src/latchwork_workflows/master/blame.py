"""Which errors follow from one run, and which from the database, the store or the ownership of the shard. Pure."""

from __future__ import annotations

import sqlalchemy as sa

from latchwork.errors import LatchworkError
from latchwork.spi import reason
from latchwork_workflows.errors import NotAllowed, UnknownWorkflow, WrongState

#: So many characters of an error are kept.
MOST_WHY = 1000
#: The database refused what a statement was to write.
_REFUSED = (sa.exc.DataError, sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.NotSupportedError)


class NeedsCare(Exception):
    """Part of a turn failed, perhaps because of one run: the turn is undone, and repeated run by run."""


def is_of_run(error: Exception) -> bool:
    """Whether an error may follow from the run, command or row at hand.

    Everything does but what the database and the store raise about themselves, and the loss of the shard. A
    ``MemoryError`` and a ``RecursionError`` do.
    """
    if isinstance(error, sa.exc.SQLAlchemyError):
        is_refused = isinstance(error, _REFUSED) or type(error) is sa.exc.StatementError
        return is_refused and not getattr(error, "connection_invalidated", False)
    if isinstance(error, LatchworkError):
        return isinstance(error, (ValueError, NotAllowed, UnknownWorkflow, WrongState))
    return not isinstance(error, NeedsCare)


def why_of(error: Exception) -> str:
    """The error for people, as text that any database takes."""
    if isinstance(error, KeyError):
        return f"nothing has the name {error.args[0]!r}, which a parameter refers to"
    is_ours = isinstance(error, (ValueError, LatchworkError)) and not isinstance(error, UnicodeError)
    text = str(error) if is_ours and str(error) else reason(error)
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")[:MOST_WHY]
