"""How the manager behaves: the strategies, and how often it acts. Nothing here touches the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from latchwork.jobs.manager.strategies import Strategies
from latchwork.jobs.options.table import ManagerRows


@dataclass(frozen=True, kw_only=True)
class ManagerOptions(ManagerRows[NoReturn]):
    """How the manager behaves.

    Attributes:
        strategies: who decides which job.
        sweep: removes what dead owners of locks left.
    """

    strategies: Strategies
    sweep: Callable[[], object]
