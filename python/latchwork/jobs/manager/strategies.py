"""Options of the manager: the strategy of each job, and how often the manager acts. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from msgspec import Struct

from latchwork._base.decoding import Decoder
from latchwork.assignment import Budgeted, Strategy, describe_strategy, strategy_by_name
from latchwork.jobs.options import ManagerRows
from latchwork.types import Entry

StrategyOption = str | Strategy
_LONGEST_NOTE = 2_000  # characters


class Strategies:
    """Maps each job to its strategy.

    A strategy is given by name or as an object. A mapping gives one per job ID, with ``*`` for all other jobs.
    """

    def __init__(self, option: StrategyOption | Mapping[str, StrategyOption] = "balanced") -> None:
        """Create the strategies that are given by name.

        Args:
            option: One strategy for all jobs, or a mapping from job ID.
        Raises:
            ValueError: A name is unknown, or an object is not a strategy.
        """
        by_job = dict(option) if isinstance(option, Mapping) else {"*": option}
        named = {name: _create_strategy(name) for name in by_job.values() if isinstance(name, str)}
        self._by_job = {
            job: named[choice] if isinstance(choice, str) else _create_strategy(choice)
            for job, choice in by_job.items()
        }
        self._by_job.setdefault("*", strategy_by_name("balanced"))

    def describe(self) -> dict[str, str]:
        """Return a one-word description of each strategy by job ID, with ``*`` for all other jobs, without limits of
        moves.
        """
        return {job: describe_strategy(_remove_move_limit(strategy)) for job, strategy in self._by_job.items()}

    def group_by_strategy(self, jobs: Iterable[str]) -> list[tuple[Strategy, list[str]]]:
        """Group jobs by their strategy, which places all of its jobs together.

        Returns:
            Each strategy with its jobs. Jobs are sorted, and groups are ordered by their first job.
        """
        grouped: dict[int, tuple[Strategy, list[str]]] = {}
        for job in sorted(jobs):
            strategy = self._by_job.get(job, self._by_job["*"])
            grouped.setdefault(id(strategy), (strategy, []))[1].append(job)
        return list(grouped.values())


@dataclass(frozen=True, kw_only=True)
class ManagerOptions(ManagerRows[NoReturn]):
    """Options of the manager.

    Attributes:
        strategies: Strategy of each job.
        sweep: Removes what dead lock owners left behind.
    """

    strategies: Strategies
    sweep: Callable[[], object]


def encode_strategies(descriptions: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of ``versions/assignment`` that name the strategies. If they would be too long, return no
    fields.

    Args:
        descriptions: Result of ``Strategies.describe``.
    """
    return (
        {"strategies": dict(descriptions)}
        if sum(map(len, [*descriptions, *descriptions.values()])) <= _LONGEST_NOTE
        else {}
    )


class StoredStrategies(Struct, frozen=True):
    """The part of the record ``versions/assignment`` that names the strategies, by job."""

    strategies: dict[str, str] = {}


_NOTE: Decoder[StoredStrategies] = Decoder(StoredStrategies, "a note on strategies")


def decode_strategies(record: Entry | None) -> dict[str, str]:
    """Return the strategies that the record ``versions/assignment`` names, by job. Return an empty mapping if it names
    none.

    Args:
        record: Entry of the record; None if it does not exist.
    """
    found = None if record is None else _NOTE.find(record.value)
    return {} if found is None else found.strategies


def _remove_move_limit(strategy: Strategy) -> Strategy:
    while isinstance(strategy, Budgeted):
        strategy = strategy.strategy
    return strategy


def _create_strategy(option: object) -> Strategy:
    if isinstance(option, str):
        return strategy_by_name(option)
    if callable(getattr(option, "assign", None)):
        return option  # type: ignore[return-value]
    msg = f"strategy {option!r} cannot be used; give a name, or an object with assign(problem) -> Plan"
    raise ValueError(msg)
