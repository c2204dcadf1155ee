"""Workflows: graphs of tasks that run on a schedule or on demand, and can be monitored, paused, repaired and rerun.

They are written in Python, YAML or JSON, and served by one process, or by separate masters, workers and API servers.
How runs are advanced, stored and shown is internal.
"""

from typing import TYPE_CHECKING

from latchwork.spi import lazy_getattr

if TYPE_CHECKING:
    from latchwork_workflows.client import BackfillRef, RunRef, WorkflowClient
    from latchwork_workflows.errors import (
        DefinitionInvalid,
        NotAllowed,
        NotFound,
        NotOwner,
        Problem,
        SchemaTooNew,
        StoreMismatch,
        WrongState,
    )
    from latchwork_workflows.home import Home
    from latchwork_workflows.installation import Installation, adopt_store, initialize, load_installation
    from latchwork_workflows.keys import Keys
    from latchwork_workflows.model.backfill_dates import DateRange
    from latchwork_workflows.model.branches import On, conditions, dependent, sub_process, switch
    from latchwork_workflows.model.builder import (
        Alerts,
        Cron,
        Node,
        TaskFunction,
        Workflow,
        shell,
        task,
        workflow,
    )
    from latchwork_workflows.model.task_functions import http, mapreduce, noop, of_type, procedure, spark, sql
    from latchwork_workflows.schemas.alerts import Alert, Channel
    from latchwork_workflows.schemas.backfills import Backfill
    from latchwork_workflows.schemas.pools import Pool, PoolDetail
    from latchwork_workflows.schemas.runs import Run, RunDetail
    from latchwork_workflows.schemas.workers import ActiveTask
    from latchwork_workflows.serve import Serve, ServeOptions
    from latchwork_workflows.types.base import Command, ParamsModel, RunInfo, TaskType
else:
    __getattr__ = lazy_getattr(
        __name__,
        {
            "latchwork_workflows.client": ("BackfillRef", "RunRef", "WorkflowClient"),
            "latchwork_workflows.model.branches": ("On", "conditions", "dependent", "sub_process", "switch"),
            "latchwork_workflows.model.builder": (
                "Alerts",
                "Cron",
                "Node",
                "TaskFunction",
                "Workflow",
                "shell",
                "task",
                "workflow",
            ),
            "latchwork_workflows.model.task_functions": (
                "http",
                "mapreduce",
                "noop",
                "of_type",
                "procedure",
                "spark",
                "sql",
            ),
            "latchwork_workflows.model.backfill_dates": ("DateRange",),
            "latchwork_workflows.errors": (
                "DefinitionInvalid",
                "NotAllowed",
                "NotOwner",
                "Problem",
                "SchemaTooNew",
                "StoreMismatch",
                "NotFound",
                "WrongState",
            ),
            "latchwork_workflows.home": ("Home",),
            "latchwork_workflows.installation": ("Installation", "adopt_store", "initialize", "load_installation"),
            "latchwork_workflows.keys": ("Keys",),
            "latchwork_workflows.schemas.pools": ("Pool", "PoolDetail"),
            "latchwork_workflows.schemas.workers": ("ActiveTask",),
            "latchwork_workflows.schemas.alerts": ("Alert", "Channel"),
            "latchwork_workflows.schemas.backfills": ("Backfill",),
            "latchwork_workflows.schemas.runs": ("Run", "RunDetail"),
            "latchwork_workflows.serve": ("Serve", "ServeOptions"),
            "latchwork_workflows.types.base": ("Command", "ParamsModel", "RunInfo", "TaskType"),
        },
        extra="workflows",
    )

__all__ = [
    "ActiveTask",
    "Alert",
    "Alerts",
    "Backfill",
    "BackfillRef",
    "Channel",
    "Command",
    "Cron",
    "DateRange",
    "DefinitionInvalid",
    "Home",
    "Installation",
    "Keys",
    "Node",
    "NotAllowed",
    "NotFound",
    "NotOwner",
    "On",
    "ParamsModel",
    "Pool",
    "PoolDetail",
    "Problem",
    "Run",
    "RunDetail",
    "RunInfo",
    "RunRef",
    "SchemaTooNew",
    "Serve",
    "ServeOptions",
    "StoreMismatch",
    "TaskFunction",
    "TaskType",
    "Workflow",
    "WorkflowClient",
    "WrongState",
    "adopt_store",
    "conditions",
    "dependent",
    "http",
    "initialize",
    "load_installation",
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
