"""Import jobs and strategies from `module:attribute`, for `latchwork run`.

User code is imported and called here. Its errors become one line that names the place in that code.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import cast

from latchwork.assignment import Strategy
from latchwork.cli.outcome import Terminated, UsageError
from latchwork.errors import LatchworkError
from latchwork.jobs import Job

_REMEDY = "give a Job, a list of Jobs, or a function without parameters that returns one or the other"


class TargetFailed(LatchworkError):
    """User code raised an exception while it was imported or called."""


def load_jobs(target: str) -> list[Job]:
    """Import a module and return the jobs in one of its attributes. Modules are also found in the current directory.

    Args:
        target: `module:attribute`; both may contain dots. The attribute may also be a function that returns jobs.
    Returns:
        The jobs in their order. The list may be empty, and IDs may occur twice.
    Raises:
        UsageError: There is no such module or attribute, or it neither is nor returns jobs.
        TargetFailed: The module or the function raised an exception.
    """
    found = _import_attribute(target)
    return _as_jobs(_call_target(found, target) if callable(found) and not isinstance(found, Job) else found, target)


def load_strategy(target: str) -> Strategy:
    """Import a module and return the strategy in one of its attributes. Modules are also found in the current
    directory.

    Args:
        target: `module:attribute`: an object with `name` and `assign`, or a class or function that returns one.
    Raises:
        UsageError: There is no such module or attribute, or it neither is nor returns a strategy.
        TargetFailed: The module or the function raised an exception.
    """
    found = _import_attribute(target)
    if callable(found) and (isinstance(found, type) or not hasattr(found, "assign")):
        found = _call_target(found, target, "a strategy")
    if not isinstance(getattr(found, "name", None), str) or not callable(getattr(found, "assign", None)):
        given = _get_article(type(found).__name__)
        raise UsageError(
            f"{target} gives {given}, which is not a strategy; give an object with name and assign(problem)"
        )
    return cast("Strategy", found)


def _import_attribute(target: str) -> object:
    name, colon, attribute = target.partition(":")
    parts = [*name.split("."), *attribute.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise UsageError(
            f"target {target!r} is not MODULE:ATTRIBUTE; for example, write jobs:report for report in jobs.py"
        )
    return _get_attribute(import_module(name), name, attribute)


def import_module(name: str) -> ModuleType:
    """Import a user's module, which is also found in the current directory.

    Raises:
        UsageError: There is no such module.
        TargetFailed: The module raised an exception.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # SystemExit too: a module may do anything
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"there is no module {error.name!r} in {here} or on the Python path; "
                "change to its directory, or correct the name before the colon"
            ) from error
        raise TargetFailed(
            f"module {name!r} {_describe_exception(error)}; fix it, or run it with python to see more"
        ) from error


def _get_attribute(module: ModuleType, name: str, path: str) -> object:
    found: object = module
    for part in path.split("."):
        if not hasattr(found, part):
            jobs = sorted(key for key, value in vars(module).items() if isinstance(value, Job))
            known = f"its jobs are {', '.join(jobs)}" if jobs else f"{_REMEDY} that name"
            raise UsageError(f"module {name!r} ({module.__file__ or 'built in'}) has no attribute {path!r}; {known}")
        found = getattr(found, part)
    return found


def _call_target(function: object, target: str, what: str = "jobs") -> object:
    try:
        return function()  # type: ignore[operator]
    except (KeyboardInterrupt, Terminated):
        raise
    except LatchworkError:
        raise  # such as an invalid job: it says all there is to say
    except BaseException as error:
        raise TargetFailed(
            f"{target} {_describe_exception(error)}; it has to return {what} when called without arguments"
        ) from error


def _as_jobs(found: object, target: str) -> list[Job]:
    listed = isinstance(found, Iterable) and not isinstance(found, (str, bytes, Job, type))
    jobs: list[Job] = []
    for job in found if listed and isinstance(found, Iterable) else [found]:
        if not isinstance(job, Job):
            raise UsageError(f"{target} gives {_get_article(type(job).__name__)}; {_REMEDY}")
        jobs.append(job)
    return jobs


def _get_article(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _describe_exception(error: BaseException) -> str:
    """Describe an exception that user code raised, with its place in that code."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"has a syntax error: {text}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {text}{where}" if text else f"raised {type(error).__name__}{where}"


def _is_ours(filename: str) -> bool:
    return filename.startswith("<frozen") or filename in {__file__, importlib.__file__}
