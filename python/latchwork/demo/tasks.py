"""Tasks of the demos: count the source files of the standard library. Worker processes import this module."""

from __future__ import annotations

import sysconfig
import time
from dataclasses import asdict
from pathlib import Path

from latchwork.demo.corpus import Counts, count_files
from latchwork.tasks import task

#: The least time for a file, so that a kill meets work.
_PACE_S = 0.05


def list_source_files(most: int) -> list[str]:
    """Return the names of the first source files of the standard library, sorted.

    Args:
        most: Maximum number of files.
    """
    return sorted(path.name for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))[:most]


@task(name="demo.count")
def count(name: str) -> dict[str, int]:
    """Count the lines, functions and classes in one source file."""
    time.sleep(_PACE_S)
    return dict(asdict(count_files([Path(sysconfig.get_path("stdlib")) / name])))


@task(name="demo.add_up")
def add_up(parts: list[dict[str, int]]) -> dict[str, int]:
    """Return the sums of several counts, by name."""
    return dict(asdict(sum((Counts(**part) for part in parts), Counts())))
