"""``noop``: does nothing. Joins branches, or measures the overhead of everything else."""

from __future__ import annotations

from typing import ClassVar

from latchwork_workflows.types.base import Command, ParamsModel, RunInfo


class NoOpParams(ParamsModel):
    """No parameters."""


class NoOp:
    """Succeeds as soon as a worker has claimed it, without a process and without a log."""

    name: ClassVar[str] = "noop"
    params: ClassVar[type[ParamsModel]] = NoOpParams
    quoted: ClassVar[frozenset[str]] = frozenset()
    is_instant: ClassVar[bool] = True

    def command(self, params: NoOpParams, run: RunInfo) -> Command:  # noqa: ARG002 - of all types
        """Return a command that does nothing. Used only by workers that start a process even for this type."""
        return Command(("true",))
