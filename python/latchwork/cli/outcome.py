"""How a command ends: one line per error, and exit codes for scripts.

0 ok, 1 failure, 2 usage (fix the call), 3 no cluster under that root, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import typer

from latchwork._base.text import printable
from latchwork.errors import (
    BackendNotInstalled,
    InvalidKey,
    InvalidURL,
    LatchworkError,
    TransactionTooLarge,
    ValueTooLarge,
)

OK = 0
FAILURE = 1
USAGE = 2
NO_CLUSTER = 3
INTERRUPTED = 130
TERMINATED = 143

DEBUG_VARIABLE = "LATCHWORK_DEBUG"
#: The family "fix the call".
_USAGE_ERRORS = (InvalidURL, InvalidKey, ValueTooLarge, TransactionTooLarge, BackendNotInstalled)

#: What to do about an error of the system, where its own words do not say it.
_REMEDIES = {
    errno.ENOSPC: "; free space on its disk",
    errno.EDQUOT: "; free space, or raise the quota",
    errno.EACCES: "; change its owner or mode",
    errno.EPERM: "; change its owner or mode",
}

F = TypeVar("F", bound=Callable[..., None])


class UsageError(LatchworkError, ValueError):
    """The command line is wrong. The message says what to write instead."""


class Terminated(BaseException):
    """SIGTERM arrived: clean up, and exit with this code. Not a ``SystemExit``, which user code may raise."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class NoCluster(LatchworkError):
    """There is no job cluster under the root of the URL."""


def report_errors(command: F) -> F:
    """Decorate a command so that an exception ends it with one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            kwargs.pop("debug", None)  # its callback has done all there is to do
            command(*args, **kwargs)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)  # noqa: T201 - this is the command line
            raise typer.Exit(INTERRUPTED) from None
        except Terminated as error:
            raise typer.Exit(error.code) from None
        except BrokenPipeError:  # the reader of our output has ended, as `| head` does
            _silence_stdout()
            raise typer.Exit(FAILURE) from None
        except Exception as error:
            if not _is_reportable(error):
                raise
            report(error)
            raise typer.Exit(exit_code(error)) from None

    return run  # type: ignore[return-value]


@contextmanager
def exit_on_sigterm(code: int) -> Iterator[None]:
    """Return a context manager in which SIGTERM ends the process with an exit code.

    The signal raises an exception in the main thread, so that child processes and files are cleaned up.

    Args:
        code: The exit code.
    """

    def leave(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated(code)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def report(error: Exception) -> None:
    """Print an error as one line on stderr, preceded by its traceback if debugging is on."""
    if debugging():
        traceback.print_exception(type(error), error, error.__traceback__)
    print(f"error: {format_error(error)}", file=sys.stderr)  # noqa: T201 - this is the command line


def exit_code(error: Exception) -> int:
    """Return the exit code for a command that failed with this error."""
    if isinstance(error, NoCluster):
        return NO_CLUSTER
    # Jobs and ids refuse what they are given with errors that are ValueErrors too.
    if isinstance(error, _USAGE_ERRORS) or (isinstance(error, ValueError) and isinstance(error, LatchworkError)):
        return USAGE
    return FAILURE


def format_error(error: BaseException) -> str:
    """Format an error as one line without control characters. If its message alone says too little, its type is put
    before it.
    """
    text = printable(" ".join(str(error).split()))
    if isinstance(error, LatchworkError) and text:
        return text
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{printable(str(error.filename))}: {error.strerror}{_REMEDIES.get(error.errno or 0, '')}"
    hint = "" if debugging() else f"; set {DEBUG_VARIABLE}=1 to see where"
    return f"unexpected {type(error).__name__}: {text or 'no message'}{hint}"


def debugging() -> bool:
    """Return whether debugging is on. Tracebacks and the library's log are then shown."""
    return os.environ.get(DEBUG_VARIABLE, "") not in {"", "0"}


def set_debugging(value: bool) -> bool:
    """Turn on debugging for this process and its child processes if the value is true. Return the value."""
    if value:
        os.environ[DEBUG_VARIABLE] = "1"
    return value


def quiet_logs() -> None:
    """Hide the library's log on the terminal, unless debugging is on."""
    if debugging():
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format=LOG_FORMAT)
        logging.getLogger("latchwork").setLevel(logging.DEBUG)
    else:
        logging.getLogger().addHandler(logging.NullHandler())


LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def _is_reportable(error: Exception) -> bool:
    """Return whether to report an exception as an error. Exceptions by which the command-line parser ends a command are
    not.
    """
    return not isinstance(error, (typer.Exit, typer.Abort, typer.BadParameter)) and not hasattr(error, "exit_code")


def _silence_stdout() -> None:
    """Discard buffered output to stdout, which the interpreter would otherwise write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
