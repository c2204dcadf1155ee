"""The documents of the API. Moments are seconds since the epoch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query
from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from latchwork.spi import MOST_MOMENT_S, MOST_WHOLE
from latchwork_workflows.model.model import Definition, Name, Priority
from latchwork_workflows.model.plain import plain_problems
from latchwork_workflows.schemas.base import Document

MOST_ID = MOST_WHOLE
Id = Annotated[int, Path(ge=1, le=MOST_ID)]
Before = Annotated[int | None, Query(ge=1, le=MOST_ID, description="only what is older than this id")]
Limit = Annotated[int, Query(ge=1, le=500, description="how many at most")]
NamePath = Annotated[Name, Path(description="letters, digits, `_`, `-` and `.`")]
UniqueKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="the same key with the same command again starts nothing more, also after the run",
    ),
]
RunState = Literal[
    "", "submitted", "serial_wait", "running", "ready_pause", "paused", "ready_stop", "stopped", "success", "failure"
]
RoleWord = Literal["viewer", "operator", "editor", "admin"]


def plain_json(value: Any) -> Any:
    """The value itself, if every database and every browser can hold it.

    Raises:
        ValueError: it cannot be held.
    """
    for path, why in plain_problems(value):
        raise ValueError(f"{path}: {why}" if path else why)
    return value


Plain = Annotated[dict[str, Any], AfterValidator(plain_json)]
Text = Annotated[str, StringConstraints(max_length=200), AfterValidator(plain_json)]


class FieldProblem(Document):
    """One field that is wrong."""

    path: str
    message: str


class ProblemDocument(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = []
    possible: list[str] | None = None


class WorkflowRow(Document):
    """A workflow."""

    code: int
    project: str
    name: str
    version: int
    online: bool
    created_at: float
    changed_at: float


class WorkflowDocument(WorkflowRow):
    """A workflow with what one of its versions says."""

    shown_version: int
    definition: Definition


class VersionRow(Document):
    """A version of a workflow."""

    version: int
    created_at: float
    author: str


class ApplyRequest(Document):
    """A definition to write, as values or as YAML."""

    definition: Plain | None = None
    yaml: Annotated[str | None, StringConstraints(max_length=4_000_000)] = None
    online: Annotated[
        bool | None, Field(description="null: a new workflow may be started, and one that is there stays as it is")
    ] = None
    base: Annotated[int | None, Field(ge=0, le=2**31 - 1, description="the version that was edited; 0: none")] = None


class Applied(Document):
    """What was written."""

    project: str
    name: str
    code: int
    version: int
    is_new: bool
    online: bool


class Validated(Document):
    """Every problem of a definition; none: it can be run."""

    ok: bool
    errors: list[FieldProblem]


class StartRequest(Document):
    """What a run is to be."""

    params: Plain = Field(default_factory=dict)
    priority: Priority | None = None
    start_from: list[Name] = Field(default_factory=list, max_length=5000)
    scope: Literal["only", "downstream", "upstream"] = "downstream"
    dry: bool = False
    no_cache: Annotated[bool, Field(description="every task runs, whatever is known of its outputs")] = False
    schedule_time: Annotated[float | None, Field(ge=0, le=MOST_MOMENT_S, allow_inf_nan=False)] = None


class RecoverRequest(Document):
    """For a recovery: which tasks run again besides those that failed. For a rerun: whether every task runs."""

    start_from: list[Name] = Field(default_factory=list, max_length=5000)
    no_cache: Annotated[bool, Field(description="every task runs, whatever is known of its outputs")] = False


class AskedDocument(Document):
    """A command that the master will find; ``instance`` is known once it has."""

    command: int
    is_new: bool
    instance: int | None = None


class CommandDocument(Document):
    """A command, and what became of it."""

    id: int
    type: str
    instance: int | None
    backfill: int | None
    by: str
    created_at: float
    done_at: float | None
    error: str | None


class InstanceRow(Document):
    """A run."""

    id: int
    project: str
    name: str
    version: int
    state: str
    run: int
    schedule_time: float
    created_at: float
    started_at: float | None
    ended_at: float | None
    by: str
    dry: bool
    params: dict[str, Any]
    parent_task: int | None = Field(description="the task that started it")
    backfill: int | None = Field(description="of which it is a date")


class TaskRow(Document):
    """A task of a run."""

    id: int
    name: str
    run: int
    state: str
    n: int
    failures: int
    wake_at: float | None
    outputs: Any
    changed_at: float


class AttemptRow(Document):
    """An attempt of a task; ``id`` is what the addresses of logs have."""

    id: str
    n: int
    kind: str
    worker: str
    host: str
    pid: int | None
    started_at: float
    ended_at: float | None
    outcome: str | None
    exit_code: int | None
    error: str | None
    cached_from: int | None = None


class InstanceDocument(InstanceRow):
    """A run with its tasks, and what it takes now."""

    tasks: list[TaskRow]
    possible: list[str]


class ChildRow(Document):
    """A run that a task started; ``task`` is the task's name, ``map_index`` -1 of one that is no element of a map."""

    id: int
    project: str
    name: str
    state: str
    started_at: float | None
    ended_at: float | None
    task: str
    map_index: int
    run: int


class AwaitedRow(Document):
    """What a dependent waits for: a run, a task of it, or all (``*``); ``there`` is null while that is not known."""

    workflow: str
    task: str
    window: str
    there: bool | None


class TaskDocument(TaskRow):
    """A task with its attempts, and why it is where it is; of a map, how many of its elements are in each state."""

    instance: int
    workflow: str
    why: str
    child: int | None
    awaited: list[AwaitedRow]
    elements: dict[str, int]
    attempts: list[AttemptRow]


class LogDocument(Document):
    """A part of a log as text; bytes as they were written come from ``log/download``."""

    text: str
    offset: int
    next: int
    ended: bool


class LastFire(Document):
    """The newest fire time of a schedule, and the run that it started, or why it started none."""

    fire_time: float
    instance: int | None
    state: str | None
    error: str | None


class ScheduleRow(Document):
    """A schedule and when it fires next."""

    project: str
    name: str
    cron: str
    tz: str
    misfire: str
    enabled: bool
    online: bool
    next_at: float | None
    last: LastFire | None


class ScheduleChange(Document):
    """Whether a schedule starts its workflow."""

    enabled: bool


class Fires(Document):
    """The next moments at which a schedule fires."""

    fires: list[float]


class OnlineChange(Document):
    """Whether a workflow may be started."""

    online: bool


class EventRow(Document):
    """What somebody did, or what happened."""

    id: int
    at: float
    kind: str
    by: str
    project: str
    instance: int | None
    task: str
    details: Any


class AccountRow(Document):
    """An account; roles by project, the empty one stands for all."""

    name: str
    enabled: bool
    has_password: bool
    roles: dict[str, str]
    created_at: float


class NewAccount(Document):
    """An account to make."""

    name: Name
    password: Annotated[str, StringConstraints(min_length=10, max_length=200)] | None = None


class AccountChange(Document):
    """What of an account is to change; what is not given stays."""

    enabled: bool | None = None
    password: Annotated[str, StringConstraints(min_length=10, max_length=200)] | None = None
    current: Annotated[
        str, StringConstraints(max_length=200), Field(description="one's own password; needed with `password`")
    ] = ""


class RoleChange(Document):
    """What an account may do in a project; the empty one stands for all, no role takes it away."""

    project: Name | Literal[""] = ""
    role: RoleWord | None


class TokenRow(Document):
    """A token, without its text."""

    id: int
    account: str
    name: str
    role: str | None
    created_at: float
    expires_at: float | None
    used_at: float | None


class NewToken(Document):
    """A token to make for oneself; ``role``: no more than this, whatever the account may do."""

    name: Text
    role: RoleWord | None = None
    lasts_s: Annotated[float | None, Field(gt=0, le=10 * 366 * 86_400, allow_inf_nan=False)] = None


class TokenMade(Document):
    """A new token; its text is told this once."""

    id: int
    token: str
