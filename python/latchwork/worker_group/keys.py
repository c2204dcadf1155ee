"""Keys of worker groups below ``@workers/<namespace>``.

    groups/<group>/record                       the group's record; checked by every transaction on its members
    groups/<group>/master/t<n>                  the election of its master
    groups/<group>/last_master_run              the last run that had a master
    groups/<group>/runs/<run>/epoch             the number of the current epoch
    groups/<group>/runs/<run>/members/<key>     a worker's record; bound to no session
    groups/<group>/runs/<run>/leases/<rank>     the running incarnation of a worker; bound to its session
    groups/<group>/runs/<run>/events/<n>        an event, written with the change it describes
    groups/<group>/runs/<run>/barriers/<epoch>/<name>/...   a ``Barrier``
    groups/<group>/runs/<run>/opened            rewritten whenever a barrier opens a generation
    groups/<group>/runs/<run>/healthy/<epoch>   exists once the event ``healthy`` of that epoch was written
    groups/<group>/runs/<run>/joining/t<n>      tickets of workers that wait for their turn to join
    ended/<group>                               the final record of the last run

A run ID is never reused, so keys of a run that no group record names are harmless.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Names of the barriers that every epoch starts and ends with.
INIT, FINAL = "init", "final"


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """Keys of one group."""

    namespace: str
    group: str

    @property
    def prefix(self) -> str:
        """Prefix of all keys of the group except its final record."""
        return f"{self.namespace}/groups/{self.group}"

    @property
    def record(self) -> str:
        """Key of the group's record."""
        return f"{self.prefix}/record"

    @property
    def master(self) -> str:
        """Key of the election of the group's master."""
        return f"{self.prefix}/master"

    @property
    def last_master_run(self) -> str:
        """Key that holds the ID of the last run that had a master."""
        return f"{self.prefix}/last_master_run"

    @property
    def runs(self) -> str:
        """Prefix of the group's runs."""
        return f"{self.prefix}/runs"

    @property
    def ended(self) -> str:
        """Key of the final record of the group's last run."""
        return f"{self.namespace}/ended/{self.group}"

    def for_run(self, run: str) -> RunKeys:
        """Return the keys of one run."""
        return RunKeys(self, run)


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Keys of one run of a group."""

    group: GroupKeys
    run: str

    @property
    def prefix(self) -> str:
        """Prefix of all keys of the run."""
        return f"{self.group.runs}/{self.run}"

    @property
    def record(self) -> str:
        """Key of the group's record, which all runs of the group share."""
        return self.group.record

    @property
    def epoch(self) -> str:
        """Key that holds the number of the current epoch."""
        return f"{self.prefix}/epoch"

    @property
    def members(self) -> str:
        """Prefix of the workers' records."""
        return f"{self.prefix}/members"

    @property
    def leases(self) -> str:
        """Prefix of the workers' leases."""
        return f"{self.prefix}/leases"

    @property
    def opened(self) -> str:
        """Key that is rewritten whenever a barrier opens a generation. A worker that completes checks it."""
        return f"{self.prefix}/opened"

    @property
    def join_queue(self) -> str:
        """Prefix of the tickets of workers that wait for their turn to join."""
        return f"{self.prefix}/joining"

    @property
    def events(self) -> str:
        """Prefix of the run's events."""
        return f"{self.prefix}/events"

    def member(self, key: str) -> str:
        """Return the key of a worker's record."""
        return f"{self.members}/{key}"

    def lease(self, rank: int) -> str:
        """Return the key of the lease of a rank."""
        return f"{self.leases}/{rank_segment(rank)}"

    def event(self, number: int) -> str:
        """Return the key of the event with this number."""
        return f"{self.events}/{number:010}"

    def healthy(self, epoch: int) -> str:
        """Return the key that exists once the event ``healthy`` of an epoch was written."""
        return f"{self.prefix}/healthy/{epoch}"

    def barriers(self, epoch: int) -> str:
        """Return the prefix of the barriers of an epoch."""
        return f"{self.prefix}/barriers/{epoch}"

    def barrier(self, epoch: int, name: str) -> str:
        """Return the key of one barrier of an epoch."""
        return f"{self.barriers(epoch)}/{name}"


def rank_segment(rank: int) -> str:
    """Format a rank as a key segment that sorts in numeric order."""
    return f"{rank:06}"
