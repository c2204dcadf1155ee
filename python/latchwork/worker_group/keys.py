"""Keys of worker groups below ``@workers/<namespace>``.

    groups/<group>/record                       the group's record; checked by every transaction on its members
    groups/<group>/master/t<n>                  the election of its master
    groups/<group>/last_master_run              the last run that had a master
    groups/<group>/runs/<run>/epoch             the number of the current epoch
    groups/<group>/runs/<run>/members/<key>     a worker's record; bound to no session
    groups/<group>/runs/<run>/leases/<rank>     the running incarnation of a worker; bound to its session
    groups/<group>/runs/<run>/events/<n>        an event, written with the change it describes
    groups/<group>/runs/<run>/barriers/<epoch>/<name>/...   a ``Barrier``
    groups/<group>/runs/<run>/opened            rewritten when a barrier opens a generation; completing checks it
    groups/<group>/runs/<run>/healthy/<epoch>   exists once the event ``healthy`` of that epoch was written
    groups/<group>/runs/<run>/joining/t<n>      tickets of workers that wait for their turn to join
    ended/<group>                               the final record of the last run

A run ID is never reused, so keys of a run that no group record names are harmless.
"""

from __future__ import annotations

#: Names of the barriers that every epoch starts and ends with.
INIT, FINAL = "init", "final"


class GroupKeys:
    """Keys of one group."""

    def __init__(self, namespace: str, group: str) -> None:
        self.namespace = namespace
        self.group = group
        #: Prefix of all keys of the group except its final record.
        self.prefix = f"{namespace}/groups/{group}"
        self.record = f"{self.prefix}/record"
        self.master = f"{self.prefix}/master"
        self.last_master_run = f"{self.prefix}/last_master_run"
        self.runs = f"{self.prefix}/runs"
        self.ended = f"{namespace}/ended/{group}"

    def for_run(self, run: str) -> RunKeys:
        """Return the keys of one run."""
        return RunKeys(self, run)


class RunKeys:
    """Keys of one run of a group. All runs of a group share its record."""

    def __init__(self, group: GroupKeys, run: str) -> None:
        self.group = group
        self.run = run
        self.prefix = f"{group.runs}/{run}"
        self.record = group.record
        self.epoch = f"{self.prefix}/epoch"
        self.members = f"{self.prefix}/members"
        self.leases = f"{self.prefix}/leases"
        self.opened = f"{self.prefix}/opened"
        self.join_queue = f"{self.prefix}/joining"
        self.events = f"{self.prefix}/events"

    def member_key(self, key: str) -> str:
        """Return the key of a worker's record.

        Args:
            key: Key that identifies the worker over restarts.
        """
        return f"{self.members}/{key}"

    def lease_key(self, rank: int) -> str:
        """Return the key that exists while the worker with this rank is running (its lease)."""
        return f"{self.leases}/{format_rank(rank)}"

    def event_key(self, number: int) -> str:
        """Return the key of the event with this number."""
        return f"{self.events}/{number:010}"

    def healthy_key(self, epoch: int) -> str:
        """Return the key that exists once the event ``healthy`` of an epoch was written."""
        return f"{self.prefix}/healthy/{epoch}"

    def barriers_prefix(self, epoch: int) -> str:
        """Return the prefix of the barriers of an epoch."""
        return f"{self.prefix}/barriers/{epoch}"

    def barrier_key(self, epoch: int, name: str) -> str:
        """Return the key of one barrier of an epoch."""
        return f"{self.barriers_prefix(epoch)}/{name}"


def format_rank(rank: int) -> str:
    """Format a rank as a key segment that sorts in numeric order."""
    return f"{rank:06}"
