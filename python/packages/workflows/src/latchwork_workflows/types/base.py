"""What a task type is: the parameters that it takes, and the command that they become. No I/O.

A type says how to start something; who starts it, ends it, keeps its output and counts its tries is the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict


class ParamsModel(BaseModel):
    """The parameters of a type: a field that nobody knows is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a type may know of the attempt that it makes a command for.

    Attributes:
        instance: id of the instance.
        task: name of the task.
        n: number of the attempt.
        folder: an empty folder of the attempt's own, removed after it.
        python: path of the interpreter.
        bundle: path of the unpacked code bundle; None where the code is installed.
        values: what ``${name}`` stands for.
        tag: what jobs of a cluster are found by: the same for all attempts of the task.
    """

    instance: int
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
        argv: program and arguments.
        stdin: what it reads; it is closed after that.
        env: variables besides those that every task gets.
        files: files to write into the attempt's folder before it starts, by name.
        keeps: a file of the attempt's folder that is kept in the log store if it succeeds, for alerts; empty: none.
    """

    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    keeps: str = ""


@runtime_checkable
class TaskType(Protocol):
    """One kind of task. Its methods are pure, and may be called by several threads at once.

    Attributes:
        name: what ``type:`` says in a definition.
        params: the model of its parameters; its JSON schema makes the form, its checks the validation.
        quoted: parameters in whose text ``${name}`` is not filled in: a value could be code there. The type hands
            values over otherwise (a shell gets them as variables).

    A type may have ``ignores_variables = True``: then a value that cannot be an environment variable is left out, and
    does not fail the attempt; ``is_instant = True``: then it has succeeded once a worker has it, and no process is
    started; ``quoting``, a mapping of parameters to what makes a value a part of their text; and ``connects = True``:
    then its parameter ``connection`` is a URL, or names a stored connection, whose URL stands in its place and whose
    password in the parameter ``password`` when ``command`` is called.
    """

    name: ClassVar[str]
    params: ClassVar[type[ParamsModel]]
    quoted: ClassVar[frozenset[str]]

    def command(self, params: Any, run: RunInfo) -> Command:
        """The command of one attempt; ``params`` is an instance of ``self.params``, its references filled in."""
        ...
