"""The one place where SQLite's errors become latchwork's."""

from __future__ import annotations

import sqlite3

from latchwork.errors import ConnectFailed, LatchworkError, PermissionDenied, QuotaExceeded, Unavailable


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection was in the way, so that trying again helps."""
    return "locked" in str(error)


def translate(error: sqlite3.Error, where: str) -> LatchworkError:
    """The error of ours for one of SQLite's that ended a call before it was committed."""
    text = str(error)  # codes are known to Python 3.11 and newer only; the texts have been stable for decades
    if is_busy(error):
        return Unavailable(f"{where} was locked by another process; try again")
    if "full" in text:
        return QuotaExceeded(f"{where} cannot grow ({text}); free space on its disk")
    if "readonly" in text or "read-only" in text:
        return PermissionDenied(f"{where} is read-only for this account ({text}); change its mode or that of its disk")
    if "not a database" in text or "malformed" in text:
        return ConnectFailed(
            f"{where} is no SQLite database or a damaged one ({text}); restore it or name another file"
        )
    if "unable to open" in text:
        return ConnectFailed(f"{where} cannot be opened ({text}); check its directory and the limit on open files")
    return Unavailable(f"{where} failed ({text}); check its disk")


def as_connect_failure(error: Exception) -> Exception:
    """The error while connecting: ``ConnectFailed`` for what is ``Unavailable`` later."""
    return ConnectFailed(str(error)) if type(error) is Unavailable else error
