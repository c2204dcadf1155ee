"""Workflows: graphs of tasks that run by the clock or by command, are seen, and can be paused, mended and run again.

Written as Python, YAML or JSON; served by one process, or by masters, workers and an API of their own. It keeps to
itself how instances are advanced, stored and shown.
"""

from typing import TYPE_CHECKING

from latchwork.doors import late

if TYPE_CHECKING:
    from latchwork.workflows.client import RunRef, WorkflowClient
    from latchwork.workflows.database.settings import SettingKind
    from latchwork.workflows.definitions.branching import On, conditions, dependent, sub_process, switch
    from latchwork.workflows.definitions.builder import (
        Alerts,
        Cron,
        Node,
        TaskFunction,
        Workflow,
        shell,
        task,
        workflow,
    )
    from latchwork.workflows.definitions.kinds import http, mapreduce, noop, of_type, procedure, spark, sql
    from latchwork.workflows.definitions.moments import DateRange
    from latchwork.workflows.desk.alerts.seen import AlertSeen, ChannelSeen
    from latchwork.workflows.desk.limiting.groups import GroupSeen
    from latchwork.workflows.desk.limiting.holding import Held, SlotTask
    from latchwork.workflows.desk.limiting.limits import LimitSeen
    from latchwork.workflows.desk.many import BackfillRef, BackfillSeen
    from latchwork.workflows.errors import (
        DefinitionInvalid,
        NotAllowed,
        NotOwner,
        Problem,
        SchemaTooNew,
        StoreMismatch,
        UnknownWorkflow,
        WrongState,
    )
    from latchwork.workflows.home import Home
    from latchwork.workflows.installation import Installation, adopt_store, initialize, installation_of
    from latchwork.workflows.keys import Keys
    from latchwork.workflows.looking import RunSeen
    from latchwork.workflows.serve import Serve, ServeOptions
    from latchwork.workflows.types.base import Command, ParamsModel, RunInfo, TaskType
else:
    __getattr__ = late(
        __name__,
        {
            "latchwork.workflows.client": ("RunRef", "WorkflowClient"),
            "latchwork.workflows.definitions.branching": ("On", "conditions", "dependent", "sub_process", "switch"),
            "latchwork.workflows.definitions.builder": (
                "Alerts",
                "Cron",
                "Node",
                "TaskFunction",
                "Workflow",
                "shell",
                "task",
                "workflow",
            ),
            "latchwork.workflows.definitions.kinds": (
                "http",
                "mapreduce",
                "noop",
                "of_type",
                "procedure",
                "spark",
                "sql",
            ),
            "latchwork.workflows.definitions.moments": ("DateRange",),
            "latchwork.workflows.errors": (
                "DefinitionInvalid",
                "NotAllowed",
                "NotOwner",
                "Problem",
                "SchemaTooNew",
                "StoreMismatch",
                "UnknownWorkflow",
                "WrongState",
            ),
            "latchwork.workflows.home": ("Home",),
            "latchwork.workflows.installation": ("Installation", "adopt_store", "initialize", "installation_of"),
            "latchwork.workflows.keys": ("Keys",),
            "latchwork.workflows.looking": ("RunSeen",),
            "latchwork.workflows.database.settings": ("SettingKind",),
            "latchwork.workflows.desk.limiting.groups": ("GroupSeen",),
            "latchwork.workflows.desk.limiting.holding": ("Held", "SlotTask"),
            "latchwork.workflows.desk.limiting.limits": ("LimitSeen",),
            "latchwork.workflows.desk.alerts.seen": ("AlertSeen", "ChannelSeen"),
            "latchwork.workflows.desk.many": ("BackfillRef", "BackfillSeen"),
            "latchwork.workflows.serve": ("Serve", "ServeOptions"),
            "latchwork.workflows.types.base": ("Command", "ParamsModel", "RunInfo", "TaskType"),
        },
        extra="workflows",
    )

__all__ = [
    "AlertSeen",
    "Alerts",
    "BackfillRef",
    "BackfillSeen",
    "ChannelSeen",
    "Command",
    "Cron",
    "DateRange",
    "DefinitionInvalid",
    "GroupSeen",
    "Held",
    "Home",
    "Installation",
    "Keys",
    "LimitSeen",
    "Node",
    "NotAllowed",
    "NotOwner",
    "On",
    "ParamsModel",
    "Problem",
    "RunInfo",
    "RunRef",
    "RunSeen",
    "SchemaTooNew",
    "Serve",
    "ServeOptions",
    "SettingKind",
    "SlotTask",
    "StoreMismatch",
    "TaskFunction",
    "TaskType",
    "UnknownWorkflow",
    "Workflow",
    "WorkflowClient",
    "WrongState",
    "adopt_store",
    "conditions",
    "dependent",
    "http",
    "initialize",
    "installation_of",
    "mapreduce",
    "noop",
    "of_type",
    "procedure",
    "shell",
    "spark",
    "sql",
    "sub_process",
    "switch",
    "task",
    "workflow",
]
