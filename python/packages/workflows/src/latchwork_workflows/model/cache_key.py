"""The cache key of a task. If the key is the same, the outputs of the last success may be reused. Pure.

The key is the SHA-256 of canonical JSON: project, tenant, type, parameters and environment, with values filled in.
Types with text in another language (a script, a statement) expose all values as variables, so the key includes all
values. Values that differ in every run, such as the schedule time, are included only if the text names them. Masters do
not know secrets, so a task that names one has no key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from latchwork_workflows.model.definition import TaskSpec
from latchwork_workflows.model.specs import build_environment, select_connections
from latchwork_workflows.model.templates import CONNECTION, SECRET, fill_references
from latchwork_workflows.model.values import RunContext, build_built_in_values, compute_values


def compute_cache_key(
    run: RunContext,
    task: TaskSpec,
    n: int,
    outputs: Mapping[str, Mapping[str, Any]],
    *,
    quoted: frozenset[str],
    index: int = -1,
) -> str | None:
    """Return the key under which the outputs of a task are cached, or None if its outputs are not cached.

    Args:
        run: The run.
        task: The task in the definition.
        n: The number of the attempt.
        outputs: The outputs of tasks that have ended, by name.
        quoted: Names of parameters that contain text in another language, whose references are not filled in.
        index: The index of an element of a map task. -1 for other tasks.
    Raises:
        KeyError, ValueError: As for ``compute_values``.
    """
    if task.cache_s is None:
        return None
    values = compute_values(run, task, n, outputs, index=index)
    env = build_environment(run, task, values)
    stored = select_connections(run, task, env, values)
    if contains_secret_reference([task.params, env]) or any(each.get("secret") for each in stored.values()):
        return None
    known = {**values, **{f"{CONNECTION}{name}": each["url"] for name, each in stored.items()}}
    made = {
        "project": run.definition.project,
        "tenant": run.definition.tenant,
        "type": task.type,
        "params": {
            name: value if name in quoted else fill_references(value, known, run.schedule_datetime)
            for name, value in task.params.items()
        },
        "env": fill_references(env, known, run.schedule_datetime),
        "connections": stored,
        "values": _select_referenced_values(run, task, n, values, quoted),
    }
    text = json.dumps(made, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return None if f"${{{SECRET}" in text else hashlib.sha256(text.encode()).hexdigest()


def contains_secret_reference(value: object) -> bool:
    """Return whether a value contains a reference to a secret."""
    return f"${{{SECRET}" in json.dumps(value, default=str)


def _select_referenced_values(
    run: RunContext, task: TaskSpec, n: int, values: Mapping[str, Any], quoted: frozenset[str]
) -> dict[str, Any]:
    """Return the values that can change what the task's script does, by name.

    Values that differ between runs, such as the run ID, are included only if the script mentions them.

    Args:
        run: The run.
        task: The task in the definition.
        n: The number of the attempt.
        values: All values of the task.
        quoted: Names of the parameters that contain a script, such as shell or SQL text.
    """
    texts = [str(value) for name, value in task.params.items() if name in quoted]
    if not texts:
        return {}
    differs = build_built_in_values(run, task.name, n).keys()

    def counts(name: str) -> bool:
        return name not in differs or any(re.search(rf"\b{re.escape(name)}\b", each) for each in texts)

    return {name: value for name, value in values.items() if counts(name)}
