"""``shell``: a script for ``sh``, or for another interpreter."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from latchwork_workflows.types.base import Command, ParamsModel, RunInfo

_SCRIPT = "script.sh"


class ShellParams(ParamsModel):
    """Parameters of ``shell``.

    Attributes:
        script: Script to run. Parameters are passed as environment variables, so write ``"$day"``. Nothing is filled
            into the text itself, because a value could then be code.
        interpreter: Interpreter of the script, with its arguments.
    """

    script: Annotated[str, Field(min_length=1, max_length=500_000)]
    interpreter: tuple[str, ...] = ("sh", "-e")


class Shell:
    """Runs a script. Its exit code decides the outcome."""

    name: ClassVar[str] = "shell"
    params: ClassVar[type[ParamsModel]] = ShellParams
    quoted: ClassVar[frozenset[str]] = frozenset({"script"})

    def command(self, params: ShellParams, run: RunInfo) -> Command:
        """Return a command that runs the script from a file, because a long script does not fit into an argument."""
        argv = (*params.interpreter, f"{run.folder}/{_SCRIPT}")
        return Command(argv, files={_SCRIPT: params.script.encode()})
