"""The faults that judges of storms are given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that landed: when, and on which process.

    Attributes:
        kind: a verb and a role, such as "kill worker".
        since: when it began, by the monotonic clock. A kill has the time at which the process was gone as both times.
        until: when it was over.
        pid: of the process; 0 is the server, which concerns every process.
    """

    kind: str
    since: float
    until: float
    pid: int = 0
