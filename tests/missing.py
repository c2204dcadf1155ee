"""What a machine may lack: tests that need it are skipped, or fail where nothing may be missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

from latchwork_testkit.binaries import ServerMissing

_T = TypeVar("_T")


def found_or_skipped(find: Callable[[], _T]) -> _T:
    """What `find` finds. Where it raises ServerMissing, the test is skipped; `LATCHWORK_NOTHING_MISSING=1` fails it."""
    try:
        return find()
    except ServerMissing as error:
        if os.environ.get("LATCHWORK_NOTHING_MISSING"):
            pytest.fail(f"nothing may be missing in this run, but: {error}")
        pytest.skip(str(error))
