"""``noop``: nothing. A place where branches meet, or the measure of what everything else costs."""

from __future__ import annotations

from typing import ClassVar

from latchwork_workflows.types.base import Command, ParamsModel, RunInfo


class NoOpParams(ParamsModel):
    """None."""


class NoOp:
    """Succeeds as soon as a worker has it, without a process and without a log."""

    name: ClassVar[str] = "noop"
    params: ClassVar[type[ParamsModel]] = NoOpParams
    quoted: ClassVar[frozenset[str]] = frozenset()
    is_instant: ClassVar[bool] = True

    def command(self, params: NoOpParams, run: RunInfo) -> Command:  # noqa: ARG002 - of all types
        """What would do the same, for who starts it all the same."""
        return Command(("true",))
