"""The keys of jobs below ``@workers/<namespace>``; see ``check_job``.

    jobs/<job>/head                       how the job is; the guard of every transaction on its members
    jobs/<job>/master/t<n>                who is the master, an ``Election``
    jobs/<job>/had_master                 the last run that had a master
    jobs/<job>/runs/<run>/epoch           how often the workers had to begin again
    jobs/<job>/runs/<run>/members/<key>   one worker; bound to no session
    jobs/<job>/runs/<run>/live/<id>       the incarnation that lives; bound to its session
    jobs/<job>/runs/<run>/events/<n>      what happened, written with what it tells of
    jobs/<job>/runs/<run>/barriers/<epoch>/<name>/...   a ``Barrier``
    jobs/<job>/runs/<run>/opened          rewritten with each generation of a barrier that is opened
    jobs/<job>/runs/<run>/healthy/<epoch>   there once it was told that all have begun that epoch
    jobs/<job>/runs/<run>/joining/t<n>    who waits for a turn to join
    ended/<job>                           how the last run ended

A run's name is never used again: what is left of a run that no head names can hurt nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Names of the barriers that latchwork itself uses.
INIT, FINAL = "init", "final"


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys of a job."""

    namespace: str
    job: str

    @property
    def folder(self) -> str:
        """Above everything of the job but how its last run ended."""
        return f"{self.namespace}/jobs/{self.job}"

    @property
    def head(self) -> str:
        """How the job is."""
        return f"{self.folder}/head"

    @property
    def master(self) -> str:
        """The election of its master."""
        return f"{self.folder}/master"

    @property
    def had_master(self) -> str:
        """The last run that had a master."""
        return f"{self.folder}/had_master"

    @property
    def runs(self) -> str:
        """Above its runs."""
        return f"{self.folder}/runs"

    @property
    def ended(self) -> str:
        """How its last run ended."""
        return f"{self.namespace}/ended/{self.job}"

    def of_run(self, run: str) -> RunKeys:
        """The keys of one run."""
        return RunKeys(self, run)


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of one run of a job."""

    job: JobKeys
    run: str

    @property
    def folder(self) -> str:
        """Above everything of the run."""
        return f"{self.job.runs}/{self.run}"

    @property
    def head(self) -> str:
        """How the job is, whatever its run."""
        return self.job.head

    @property
    def epoch(self) -> str:
        """The epoch."""
        return f"{self.folder}/epoch"

    @property
    def members(self) -> str:
        """Above the workers."""
        return f"{self.folder}/members"

    @property
    def live(self) -> str:
        """Above the ids that live."""
        return f"{self.folder}/live"

    @property
    def opened(self) -> str:
        """The guard that opens a generation of a barrier, and that a worker that completes checks."""
        return f"{self.folder}/opened"

    @property
    def joining(self) -> str:
        """Above the tickets of who waits for a turn to join."""
        return f"{self.folder}/joining"

    @property
    def events(self) -> str:
        """Above the events."""
        return f"{self.folder}/events"

    def member(self, key: str) -> str:
        """One worker."""
        return f"{self.members}/{key}"

    def live_of(self, number: int) -> str:
        """The lease of an id."""
        return f"{self.live}/{arrival_id(number)}"

    def event(self, number: int) -> str:
        """One event."""
        return f"{self.events}/{number:010}"

    def healthy(self, epoch: int) -> str:
        """There once it was told that everybody is at the start line."""
        return f"{self.folder}/healthy/{epoch}"

    def barriers(self, epoch: int) -> str:
        """Above the barriers of an epoch."""
        return f"{self.folder}/barriers/{epoch}"

    def barrier(self, epoch: int, name: str) -> str:
        """A barrier of an epoch."""
        return f"{self.barriers(epoch)}/{name}"


def arrival_id(number: int) -> str:
    """A worker's id as a part of a key: as text they are in the order of the numbers."""
    return f"{number:06}"
