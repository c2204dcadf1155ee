"""``shell``: a script for ``sh``, or for another interpreter."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from latchwork_workflows.types.base import Command, ParamsModel, RunInfo

_SCRIPT = "script.sh"


class ShellParams(ParamsModel):
    """Attributes:
    script: what to run. Parameters are there as environment variables of their names, so ``"$day"`` is one; nothing is
        filled into the text itself, since a value could then be code.
    interpreter: what reads the script, with its arguments.
    """

    script: Annotated[str, Field(min_length=1, max_length=500_000)]
    interpreter: tuple[str, ...] = ("sh", "-e")


class Shell:
    """Runs a script; its exit code says how it went."""

    name: ClassVar[str] = "shell"
    params: ClassVar[type[ParamsModel]] = ShellParams
    quoted: ClassVar[frozenset[str]] = frozenset({"script"})

    def command(self, params: ShellParams, run: RunInfo) -> Command:
        """The script stands in a file: one of half a megabyte is no argument."""
        argv = (*params.interpreter, f"{run.folder}/{_SCRIPT}")
        return Command(argv, files={_SCRIPT: params.script.encode()})
