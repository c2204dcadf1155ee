"""Types of values that several schemas use."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from latchwork.spi import MAX_TIME_S
from latchwork_workflows.model.definition import Name
from latchwork_workflows.model.json_values import find_storage_problems

RoleWord = Literal["viewer", "operator", "editor", "admin"]


def check_json(value: Any) -> Any:
    """Check that databases and browsers can represent a JSON value, and return it.

    Raises:
        ValueError: The value cannot be represented.
    """
    for path, why in find_storage_problems(value):
        raise ValueError(f"{path}: {why}" if path else why)
    return value


Plain = Annotated[dict[str, Any], AfterValidator(check_json)]
Text = Annotated[str, StringConstraints(max_length=200), AfterValidator(check_json)]
TaskNames = Annotated[list[Name], Field(max_length=5000)]
Time = Annotated[float, Field(ge=0, le=MAX_TIME_S, allow_inf_nan=False)]
NoCache = Annotated[bool, Field(description="run every task, and ignore cached outputs")]
