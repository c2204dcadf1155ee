"""How often a task is tried, and how long it pauses between. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from latchwork._base.decoding import Positive
from latchwork.checks import is_number
from latchwork.errors import LatchworkError

#: Pauses are at most a year: longer ones are no retries.
_MOST_S = 366 * 86_400.0
_MOST_INCREASE = 1e6


def backoff_s(count: int, initial_s: float = 0.1, increase: float = 1.5, max_s: float = 10.0) -> float:
    """Seconds to pause after so many tries: ``min(max_s, initial_s * increase ** count)``; any count is safe.

    Args:
        count: tries before this pause, minus one; 0 is the first pause.
        initial_s: the first pause.
        increase: each pause is so many times the one before.
        max_s: no pause is longer.
    """
    try:
        return min(max_s, initial_s * increase ** max(0, count))
    except OverflowError:
        return max_s if initial_s > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a task that raises is tried again.

    Attributes:
        attempts: how often it is tried in all; 1 tries once.
        initial_s: seconds before the second try.
        increase: each pause is so many times the one before.
        max_s: no pause is longer, in seconds.
        jitter: each pause is longer or shorter by up to this part of it, by chance; 0 to 1.
        on: exceptions of these classes are tried again, all others fail at once.
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

    def again(self, attempt: int, error: BaseException | None) -> bool:
        """Whether the try of this number, from 1, is followed by another after this error.

        An error that is not known here as an exception (None) is one of any class.
        """
        return attempt < self.attempts and (error is None or isinstance(error, self.on))

    def pause_s(self, attempt: int, chance: float | None = None) -> float:
        """Seconds to pause after the try of this number, from 1.

        Args:
            attempt: the number of the try that failed.
            chance: from 0 to 1, for the jitter; None draws one.
        """
        drawn = random.random() if chance is None else chance
        return backoff_s(attempt - 1, self.initial_s, self.increase, self.max_s) * (1 + self.jitter * (2 * drawn - 1))


#: One try, no more.
ONCE = Retry()

_Pause = Annotated[float, Meta(ge=0.0, le=_MOST_S)]


class StoredRetry(Struct, frozen=True):
    """A retry as a part of a record: its classes of exceptions are text, and none is imported because of that.

    Attributes:
        on: the classes of exceptions that are tried again, as ``module:qualname``.
    """

    attempts: Positive
    initial_s: _Pause
    increase: Annotated[float, Meta(ge=1.0, le=_MOST_INCREASE)]
    max_s: _Pause
    jitter: Annotated[float, Meta(ge=0.0, le=1.0)]
    on: tuple[str, ...]

    @classmethod
    def of(cls, retry: Retry) -> StoredRetry:
        """Return a retry as it is stored."""
        on = tuple(map(type_name, retry.on))
        return cls(retry.attempts, retry.initial_s, retry.increase, retry.max_s, retry.jitter, on)

    def to_retry(self) -> Retry:
        """Return the retry, without its classes of exceptions."""
        return Retry(self.attempts, self.initial_s, self.increase, self.max_s, self.jitter)


def type_name(kind: type[BaseException]) -> str:
    """Return a class of exceptions as it is stored."""
    return f"{kind.__module__}:{kind.__qualname__}"


def is_final(error: BaseException | None) -> bool:
    """Whether no second try can help: the call itself is wrong."""
    return isinstance(error, LatchworkError) and isinstance(error, (LookupError, TypeError, ValueError))
