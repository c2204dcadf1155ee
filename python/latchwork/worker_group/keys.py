"""The keys of groups below ``@workers/<namespace>``; see ``resolve_group``.

    groups/<group>/record                       how the group is; the guard of every transaction on its members
    groups/<group>/master/t<n>                who is the master, an ``Election``
    groups/<group>/last_master_run                 the last run that had a master
    groups/<group>/runs/<run>/epoch           how often the workers had to begin again
    groups/<group>/runs/<run>/members/<key>   one worker; bound to no session
    groups/<group>/runs/<run>/live/<id>       the incarnation that lives; bound to its session
    groups/<group>/runs/<run>/events/<n>      what happened, written with what it tells of
    groups/<group>/runs/<run>/barriers/<epoch>/<name>/...   a ``Barrier``
    groups/<group>/runs/<run>/opened          rewritten with each generation of a barrier that is opened
    groups/<group>/runs/<run>/healthy/<epoch>   there once it was told that all have begun that epoch
    groups/<group>/runs/<run>/joining/t<n>    who waits for a turn to join
    ended/<group>                           how the last run ended

A run's name is never used again: what is left of a run that no record names can hurt nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Names of the barriers that latchwork itself uses.
INIT, FINAL = "init", "final"


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """The keys of a group."""

    namespace: str
    group: str

    @property
    def prefix(self) -> str:
        """Above everything of the group but how its last run ended."""
        return f"{self.namespace}/groups/{self.group}"

    @property
    def record(self) -> str:
        """How the group is."""
        return f"{self.prefix}/record"

    @property
    def master(self) -> str:
        """The election of its master."""
        return f"{self.prefix}/master"

    @property
    def last_master_run(self) -> str:
        """The last run that had a master."""
        return f"{self.prefix}/last_master_run"

    @property
    def runs(self) -> str:
        """Above its runs."""
        return f"{self.prefix}/runs"

    @property
    def ended(self) -> str:
        """How its last run ended."""
        return f"{self.namespace}/ended/{self.group}"

    def for_run(self, run: str) -> RunKeys:
        """The keys of one run."""
        return RunKeys(self, run)


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of one run of a group."""

    group: GroupKeys
    run: str

    @property
    def prefix(self) -> str:
        """Above everything of the run."""
        return f"{self.group.runs}/{self.run}"

    @property
    def record(self) -> str:
        """How the group is, whatever its run."""
        return self.group.record

    @property
    def epoch(self) -> str:
        """The epoch."""
        return f"{self.prefix}/epoch"

    @property
    def members(self) -> str:
        """Above the workers."""
        return f"{self.prefix}/members"

    @property
    def leases(self) -> str:
        """Above the ids that live."""
        return f"{self.prefix}/leases"

    @property
    def opened(self) -> str:
        """The guard that opens a generation of a barrier, and that a worker that completes checks."""
        return f"{self.prefix}/opened"

    @property
    def join_queue(self) -> str:
        """Above the tickets of who waits for a turn to join."""
        return f"{self.prefix}/joining"

    @property
    def events(self) -> str:
        """Above the events."""
        return f"{self.prefix}/events"

    def member(self, key: str) -> str:
        """One worker."""
        return f"{self.members}/{key}"

    def lease(self, rank: int) -> str:
        """The lease of an id."""
        return f"{self.leases}/{rank_segment(rank)}"

    def event(self, number: int) -> str:
        """One event."""
        return f"{self.events}/{number:010}"

    def healthy(self, epoch: int) -> str:
        """There once it was told that everybody is at the start line."""
        return f"{self.prefix}/healthy/{epoch}"

    def barriers(self, epoch: int) -> str:
        """Above the barriers of an epoch."""
        return f"{self.prefix}/barriers/{epoch}"

    def barrier(self, epoch: int, name: str) -> str:
        """A barrier of an epoch."""
        return f"{self.barriers(epoch)}/{name}"


def rank_segment(rank: int) -> str:
    """A worker's id as a part of a key: as text they are in the order of the numbers."""
    return f"{rank:06}"
