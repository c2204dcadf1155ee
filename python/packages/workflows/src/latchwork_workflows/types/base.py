"""Base of task types: the parameters of a type, and the command built from them. No I/O.

A type only says how to start a task. The worker starts and ends it, stores its output and counts its attempts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict


class ParamsModel(BaseModel):
    """Base of the parameters of a type. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Data about the attempt for which a type builds a command.

    Attributes:
        run_id: ID of the run.
        task: Name of the task.
        n: Number of the attempt.
        folder: Empty folder for this attempt, removed after it.
        python: Path of the interpreter.
        bundle: Path of the unpacked code bundle. None if the code is installed.
        values: Values for ``${name}``.
        tag: Identifies jobs in a cluster. The same for all attempts of the task.
    """

    run_id: int
    task: str
    n: int
    folder: str
    python: str
    bundle: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run under supervision.

    Attributes:
        argv: Program and arguments.
        stdin: Its input, which is closed afterwards.
        env: Variables in addition to those of every task.
        files: Files to write into the attempt's folder before the start, by name.
        keeps: File in the attempt's folder to keep in the log store after a success, for alerts. Empty: none.
    """

    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    keeps: str = ""


@runtime_checkable
class TaskType(Protocol):
    """A kind of task. Its methods are pure and thread-safe.

    Attributes:
        name: Value of ``type:`` in a definition.
        params: Model of its parameters. Its JSON schema defines the form, and its checks the validation.
        quoted: Parameters in which ``${name}`` is not filled in, because a value could be code there. The type passes
            values in another way: a shell gets them as variables.

    A type may have these optional attributes:

    - ``ignores_variables``: True to leave out a value that cannot be an environment variable. Otherwise it fails the
      attempt.
    - ``is_instant``: True to succeed once a worker has claimed the task, without a process.
    - ``quoting``: A mapping of parameters to functions that quote a value for their text.
    - ``connects``: True if its parameter ``connection`` is a URL, or the name of a stored connection. Before
      ``command`` is called, a name is replaced by the URL, and the password is put into the parameter ``password``.
    """

    name: ClassVar[str]
    params: ClassVar[type[ParamsModel]]
    quoted: ClassVar[frozenset[str]]

    def command(self, params: Any, run: RunInfo) -> Command:
        """Return the command that runs one attempt.

        ``params`` has the parameters of the task with all references filled in.
        """
        ...
