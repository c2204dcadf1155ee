"""One run: rounds of calls under faults, each with a history that is judged while the next is recorded."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import latchwork
from latchwork.errors import LatchworkError
from latchwork_testkit.histories.calls import CONFLICT, OK, REFUSED, UNKNOWN, Call, History, ReportedEntry
from latchwork_testkit.histories.checker import check_history
from latchwork_testkit.histories.clients import Clients
from latchwork_testkit.histories.recorder import KEYS, Recorder
from trials.history.setups import CLIENTS, Setup, setup_of
from trials.record import Facts
from trials.remote import Remote
from trials.stage import LINKS, Stage
from trials.witness import Witness

LEAST_FAULTS = 20
LEAST_UNKNOWN = 0.01
_TRIES = 3
_NUMBERS = 10_000_000  # for each client


@dataclass
class Summary:
    """What a run did and found.

    Attributes:
        calls: answered, or found to be unknown.
        answers: by outcome.
        faults: that landed, by kind.
        rounds: histories judged.
        most: explanations of a history that the search had to keep at once.
        problems: sentences; empty when every history was linearizable and every client came back.
        bad: the first history that was not.
        spoilt: what the servers lost by a fault of their own, as raw clients saw it; the run ends, and means nothing.
    """

    backend: str
    seed: int
    calls: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    seconds: float = 0.0
    judging_s: float = 0.0
    most: int = 0
    problems: list[str] = field(default_factory=list)
    bad: History | None = None
    spoilt: str = ""

    @property
    def unknown_share(self) -> float:
        return self.answers[UNKNOWN] / self.calls if self.calls else 0.0

    @property
    def counts(self) -> bool:
        """Enough went wrong for the run to mean something."""
        return sum(self.faults.values()) >= LEAST_FAULTS and self.unknown_share >= LEAST_UNKNOWN

    def as_json(self) -> dict[str, object]:
        """All but the bad history."""
        answers = {each: self.answers[each] for each in (OK, CONFLICT, REFUSED, UNKNOWN)}
        return {**vars(self), "answers": answers, "unknown_share": round(self.unknown_share, 4), "bad": None}

    def describe(self) -> str:
        """One line of progress."""
        found = f"NOT GOOD: {self.problems[0][:300]}" if self.problems else "linearizable"
        return (
            f"{self.backend}: {self.calls} calls, {self.answers[UNKNOWN]} unknown ({self.unknown_share:.1%}), "
            f"{sum(self.faults.values())} faults, {self.rounds} rounds, {self.seconds:.0f} s, "
            f"{f'SPOILT: {self.spoilt}' if self.spoilt else found}"
        )


def repeated(run: Callable[[], Summary]) -> Summary:
    """The summary of a run; of another one, with other servers, when those lost data by a fault of their own."""
    summary = run()
    for _ in range(_TRIES - 1):
        if not summary.spoilt:
            break
        print(f"once more: {summary.describe()}", flush=True)
        summary = run()
    return summary


class Run:
    """A stage with eight clients; records and judges until it has enough, or something is wrong. One thread at a time.

    Args:
        name: of the backend, with ``-x3`` for three servers of it.
        directory: for files.
        seed: of everything random but the timing.
        round_s: seconds of a round.
        setup: by default that of the backend.
        wrap: what the calls of clients in this process go through; see ``Clients``.

    Attributes:
        local: the clients of this process.
        processes: those of others, with the numbers of their clients.
        witness: what the servers lost by a fault of their own, by raw clients' word.
    """

    ROOT = "test"

    def __init__(
        self,
        name: str,
        directory: Path,
        seed: int,
        *,
        round_s: float,
        setup: Setup | None = None,
        wrap: Callable[[latchwork.Store], Any] = lambda store: store,
    ) -> None:
        backend, _, members = name.partition("-x")
        self.summary = Summary(name, seed)
        self.setup = setup or setup_of(name)
        self.stage = Stage(backend, directory, members=int(members or 1), links=LINKS[0] if members else "")
        self.witness = Witness(self.stage.server)
        self.processes: dict[Remote, list[int]] = {}
        self._facts = Facts()
        self._rng = random.Random(seed)
        self._round_s = round_s
        self._wrap = wrap
        self._started = 0
        self._start: dict[str, ReportedEntry | None] = dict.fromkeys(KEYS)
        self._after = 0

    def until(self, calls: int, *, limit_s: float, progress: Callable[[Summary], None] = lambda _: None) -> Summary:
        """Go on until there are so many calls and the run counts; the limit is for a run that never gets there."""
        began = time.monotonic()
        summary = self.summary
        with self.stage, contextlib.ExitStack() as opened:
            self._open_clients(opened)
            with latchwork.connect(self.stage.url(self.ROOT)) as store:
                while not summary.problems and not summary.spoilt and (summary.calls < calls or not summary.counts):
                    self._round(store)
                    summary.seconds = time.monotonic() - began
                    progress(summary)
                    if summary.seconds > limit_s:
                        break
        return summary

    def wait(self, rng: random.Random) -> None:
        """As long as a fault lasts."""
        time.sleep(rng.uniform(*self.setup.outage_s))

    def kill_a_process(self, rng: random.Random) -> None:
        """Kill one with all its clients, and start another in its place."""
        process = rng.choice(list(self.processes))
        numbers = self.processes.pop(process)
        moment = process.kill()
        for call in self._facts.of(Call):
            if call.number - call.number % _NUMBERS in numbers and call.returned is None:
                call.returned = moment  # what it had under way can land no more
        self._start_process([number // _NUMBERS % CLIENTS for number in numbers]).start(rng.getrandbits(32))

    # The clients

    def _open_clients(self, opened: contextlib.ExitStack) -> None:
        self.stage.lay_ways(CLIENTS)
        opened.callback(lambda: [process.close() for process in self.processes])
        specs = [self._spec(way) for way in range(self.setup.local)]
        self.local = Clients(
            specs,
            self._facts.add,
            give_up_after_s=self.setup.give_up_after_s,
            mean_pause_s=self.setup.mean_pause_s,
            wrap=self._wrap,
        )
        opened.callback(self.local.close)
        for way in range(self.setup.local, CLIENTS, self.setup.in_each):
            self._start_process(list(range(way, way + self.setup.in_each)))

    def _start_process(self, ways: list[int]) -> Remote:
        specs = [self._spec(way) for way in ways]
        process = Remote(
            "trials.history.client:serve",
            specs,
            self.setup.give_up_after_s,
            self.setup.mean_pause_s,
            report=self._facts.add,
        )
        self.processes[process] = [number for _, number, _ in specs]
        return process

    def _spec(self, way: int) -> tuple[str, int, str]:
        """Name, number of the first call and URL of a new client; the number tells its way, too."""
        self._started += CLIENTS
        url = self.stage.url(self.ROOT, way, **self.setup.options)
        return f"c{way}.{self._started // CLIENTS}", (self._started + way) * _NUMBERS, url

    # A round

    def _round(self, store: latchwork.Store) -> None:
        history = self._record(store)
        began = time.monotonic()
        check = check_history(history)
        summary = self.summary
        summary.judging_s += time.monotonic() - began
        summary.rounds += 1
        summary.most = max(summary.most, check.search.max_configurations)
        if not check.is_linearizable:
            summary.spoilt = self.witness.describe()
        if not check.is_linearizable and not summary.spoilt:
            summary.problems += check.problems
            summary.bad = history

    def _record(self, store: latchwork.Store) -> History:
        summary = self.summary
        for clients in (self.local, *self.processes):
            clients.start(self._rng.getrandbits(32))
        self._hurt(time.monotonic() + self._round_s)
        for clients in (self.local, *self.processes):
            clients.stop()
        for clients in (self.local, *self.processes):
            summary.problems += clients.finish()
        calls = self._facts.take(Call)
        try:
            self._read_all(store)
        except LatchworkError as error:
            summary.problems.append(f"no answer after the last fault was over: {error}; {self._condition()}")
            self._facts.take(Call)
        last = self._facts.take(Call)
        summary.calls += len(calls)
        summary.answers.update(call.outcome for call in calls)
        history = History(KEYS, self._start, self._after, calls + last)
        self._start = {call.key: call.found for call in last}
        tokens = [
            seen.token for call in history.calls for seen in (*call.written, *([call.found] if call.found else []))
        ]
        self._after = max([self._after, *tokens, *(call.token or 0 for call in history.calls)])
        return history

    def _read_all(self, store: latchwork.Store) -> None:
        reader = Recorder(store, "reader", self.summary.rounds * len(KEYS), self._facts.add)
        for key in KEYS:
            reader.get(key)

    def _condition(self) -> str:
        """For people, when the store gives no answer although every fault is over."""
        told = []
        for member in self.stage.members:
            lines = member.log_path.read_text(errors="replace").splitlines()[-15:] if not member.running else []
            told.append("\n".join([repr(member), *lines]))
        return "\n".join(told)

    def _hurt(self, until: float) -> None:
        setup, rng = self.setup, self._rng
        weights = [fault.weight for fault in setup.faults]
        time.sleep(rng.uniform(*setup.pause_s))
        while time.monotonic() < until:
            fault = rng.choices(setup.faults, weights)[0]
            if fault.inflict(self, rng):
                self.summary.faults[fault.name] += 1
            time.sleep(rng.uniform(*setup.pause_s))
