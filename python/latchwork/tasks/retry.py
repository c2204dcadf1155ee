"""Retry policies of tasks. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from latchwork._base.decoding import Positive
from latchwork._base.validation import is_number

#: Pauses are at most a year: longer ones are no retries.
_MOST_S = 366 * 86_400.0
_MOST_INCREASE = 1e6


def backoff_s(count: int, initial_s: float = 0.1, increase: float = 1.5, max_s: float = 10.0) -> float:
    """Return the seconds to pause before a retry: ``min(max_s, initial_s * increase ** count)``.

    Args:
        count: Number of earlier pauses; 0 for the first one. May be arbitrarily large.
        initial_s: The first pause in seconds.
        increase: Factor between two pauses.
        max_s: The longest pause in seconds.
    """
    try:
        return min(max_s, initial_s * increase ** max(0, count))
    except OverflowError:
        return max_s if initial_s > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry policy of a task that raises.

    Attributes:
        attempts: Total number of attempts; 1 means no retry.
        initial_s: Seconds before the second attempt.
        increase: Factor between two pauses.
        max_s: The longest pause, in seconds.
        jitter: Each pause is randomly longer or shorter by up to this fraction; 0 to 1.
        on: Exceptions of these classes are retried, all others fail at once.
    """

    attempts: int = 1
    initial_s: float = 0.1
    increase: float = 1.5
    max_s: float = 10.0
    jitter: float = 0.1
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise ValueError(f"attempts must be a whole number from 1, not {self.attempts!r}")
        for name, least, most in (
            ("initial_s", 0.0, _MOST_S),
            ("increase", 1.0, _MOST_INCREASE),
            ("max_s", 0.0, _MOST_S),
            ("jitter", 0.0, 1.0),
        ):
            value: object = getattr(self, name)
            if not is_number(value, least) or value > most:
                raise ValueError(f"{name} of a retry must be a number from {least:g} to {most:g}, not {value!r}")
        kinds: object = self.on
        if not isinstance(kinds, tuple) or not all(isinstance(k, type) and issubclass(k, BaseException) for k in kinds):
            raise TypeError(f"on must be a tuple of exception classes, not {kinds!r}")

    def pause_s(self, attempt: int, random_fraction: float | None = None) -> float:
        """Return the seconds to pause after a failed attempt.

        Args:
            attempt: Number of the attempt that failed, from 1.
            random_fraction: A number from 0 to 1 that determines the jitter; None draws one.
        """
        drawn = random.random() if random_fraction is None else random_fraction
        return backoff_s(attempt - 1, self.initial_s, self.increase, self.max_s) * (1 + self.jitter * (2 * drawn - 1))


#: One try, no more.
ONCE = Retry()

_Pause = Annotated[float, Meta(ge=0.0, le=_MOST_S)]


class StoredRetry(Struct, frozen=True):
    """The stored form of a retry policy. Exception classes are stored as text, and never imported.

    Attributes:
        on: The exception classes that are retried, as ``module:qualname``.
    """

    attempts: Positive
    initial_s: _Pause
    increase: Annotated[float, Meta(ge=1.0, le=_MOST_INCREASE)]
    max_s: _Pause
    jitter: Annotated[float, Meta(ge=0.0, le=1.0)]
    on: tuple[str, ...]

    @classmethod
    def from_retry(cls, retry: Retry) -> StoredRetry:
        """Convert a retry policy into its stored form."""
        on = tuple(map(type_name, retry.on))
        return cls(retry.attempts, retry.initial_s, retry.increase, retry.max_s, retry.jitter, on)

    def to_retry(self) -> Retry:
        """Convert the stored form into a retry policy, without its exception classes."""
        return Retry(self.attempts, self.initial_s, self.increase, self.max_s, self.jitter)


def type_name(kind: type[BaseException]) -> str:
    """Return the name under which an exception class is stored: ``module:qualname``."""
    return f"{kind.__module__}:{kind.__qualname__}"
