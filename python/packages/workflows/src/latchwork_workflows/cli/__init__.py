"""The commands of `latchwork workflows`, which latchwork finds by the entry point group ``latchwork.commands``."""

from latchwork.spi import CommandSpec

__all__ = ["WORKFLOWS"]

WORKFLOWS = CommandSpec(
    "latchwork_workflows.cli.app:workflows_app",
    "Workflows: graphs of tasks that run on a schedule or on demand, and can be monitored, paused, repaired and rerun",
    demo="latchwork_workflows.demo.fleet:run_while_killing_worker",
)
