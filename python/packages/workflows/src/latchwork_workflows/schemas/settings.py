"""Connections, environments and parameters, which workflows refer to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from latchwork_workflows.model.definition import NAME_PATTERN
from latchwork_workflows.schemas.base import Document
from latchwork_workflows.schemas.values import check_json

SettingKind = Literal["connection", "environment", "parameter"]
_Variables = Annotated[dict[str, Annotated[str, StringConstraints(max_length=100_000)]], AfterValidator(check_json)]


class Setting(Document):
    """The fields of every setting.

    Attributes:
        project: The project that has it. Empty: all projects.
        name: Its name.
        shown: Whether the reader may see its value. If not, the other fields are None.
    """

    project: str
    name: str
    shown: bool


class Connection(Setting):
    """A connection without its password.

    Attributes:
        url: As SQLAlchemy reads it, without a password.
        secret: The name of the password among the secrets of workers. Empty: it has none.
    """

    url: str | None = None
    secret: str | None = None


class Environment(Setting):
    """A named set of variables."""

    variables: dict[str, str] | None = None


class Parameter(Setting):
    """A value for ``${name}``: any JSON."""

    value: Any = None


class ConnectionChange(Document):
    """A connection to store. A URL with a password is refused."""

    url: Annotated[str, StringConstraints(max_length=4000), AfterValidator(check_json)]
    secret: Annotated[str, StringConstraints(max_length=100), AfterValidator(check_json)] = ""


class EnvironmentChange(Document):
    """The variables of an environment. With ``keep`` the others stay, except those in ``drop``."""

    variables: _Variables
    keep: bool = False
    drop: list[str] = Field(default_factory=list, max_length=1000)


class ParameterChange(Document):
    """The value of a parameter: any JSON."""

    value: Annotated[Any, AfterValidator(check_json)]


class ConnectionTest(Document):
    """The project and the worker group in which to test a connection.


    Attributes:
        within: The project in which a connection of all projects is tested. Empty: ``default``.
        group: The worker group whose workers test it.
    """

    within: Annotated[str, Field(pattern=rf"^$|{NAME_PATTERN}")] = ""
    group: Annotated[str, Field(pattern=NAME_PATTERN)] = "default"


class SettingStored(Document):
    """The answer to a stored setting."""

    is_new: bool


class SettingRemoved(Document):
    """The workflows that still name a removed setting. Their tasks will fail."""

    missed_by: list[str]
