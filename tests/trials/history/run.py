"""One run: rounds of calls under faults, each with a history that is judged while the next is recorded."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import latchwork
from latchwork.errors import LatchworkError
from trials.history.client import KEYS, Recorder
from trials.judges.linearizable.calls import CONFLICT, OK, REFUSED, UNKNOWN, Call, History, Seen
from trials.judges.linearizable.checker import judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from trials.history.stages import Stage

LEAST_FAULTS = 20
LEAST_UNKNOWN = 0.01
_TRIES = 3


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
        return {
            "backend": self.backend,
            "seed": self.seed,
            "calls": self.calls,
            "answers": {each: self.answers[each] for each in (OK, CONFLICT, REFUSED, UNKNOWN)},
            "unknown_share": round(self.unknown_share, 4),
            "faults": dict(sorted(self.faults.items())),
            "rounds": self.rounds,
            "seconds": round(self.seconds, 1),
            "judging_s": round(self.judging_s, 1),
            "most_explanations": self.most,
            "problems": self.problems,
            "spoilt": self.spoilt,
        }

    def told(self) -> str:
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
        print(f"once more: {summary.told()}", flush=True)
        summary = run()
    return summary


class Run:
    """Records and judges until it has enough, or something is wrong.

    Args:
        name: of the backend.
        stage: not open yet.
        seed: of everything random but the timing.
        round_s: seconds of a round.
    """

    def __init__(self, name: str, stage: Stage, seed: int, *, round_s: float) -> None:
        self.summary = Summary(name, seed)
        self._stage = stage
        self._rng = random.Random(seed)
        self._round_s = round_s
        self._start: dict[str, Seen | None] = dict.fromkeys(KEYS)
        self._after = 0

    def until(self, calls: int, *, limit_s: float, progress: Callable[[Summary], None] = lambda _: None) -> Summary:
        """Go on until there are so many calls and the run counts; the limit is for a run that never gets there."""
        began = time.monotonic()
        summary = self.summary
        stage = self._stage
        try:
            stage.open()
            with latchwork.connect(stage.url(None)) as store:
                while not summary.problems and not summary.spoilt and (summary.calls < calls or not summary.counts):
                    self._round(store)
                    summary.seconds = time.monotonic() - began
                    progress(summary)
                    if summary.seconds > limit_s:
                        break
        finally:
            stage.close()
        return summary

    def _round(self, store: latchwork.Store) -> None:
        history = self._record(store)
        began = time.monotonic()
        judgement = judge(history)
        summary = self.summary
        summary.judging_s += time.monotonic() - began
        summary.rounds += 1
        summary.most = max(summary.most, judgement.verdict.most)
        if not judgement.is_good:
            summary.spoilt = self._stage.spoilt()
        if not judgement.is_good and not summary.spoilt:
            summary.problems += judgement.problems
            summary.bad = history

    def _record(self, store: latchwork.Store) -> History:
        stage, summary = self._stage, self.summary
        for client in stage.clients:
            client.go(self._rng.getrandbits(32))
        self._hurt(time.monotonic() + self._round_s)
        for client in stage.clients:
            client.stop()
        calls, problems = stage.finished
        stage.finished = ([], [])
        for client in stage.clients:
            more, wrong = client.finish()
            calls += more
            problems += wrong
        summary.problems += problems
        last = _Kept()
        try:
            self._read_all(store, last)
        except LatchworkError as error:
            summary.problems.append(f"no answer after the last fault was over: {error}; {stage.condition()}")
            last.calls.clear()
        summary.calls += len(calls)
        summary.answers.update(call.outcome for call in calls)
        history = History(KEYS, self._start, self._after, calls + last.calls)
        self._start = {call.key: call.found for call in last.calls}
        tokens = [
            seen.token for call in history.calls for seen in (*call.written, *([call.found] if call.found else []))
        ]
        self._after = max([self._after, *tokens, *(call.token or 0 for call in history.calls)])
        return history

    def _read_all(self, store: latchwork.Store, sink: _Kept) -> None:
        reader = Recorder(store, "reader", self.summary.rounds * len(KEYS), sink)
        for key in KEYS:
            reader.get(key)

    def _hurt(self, until: float) -> None:
        stage, rng = self._stage, self._rng
        weights = [fault.weight for fault in stage.faults]
        time.sleep(rng.uniform(*stage.pause_s))
        while time.monotonic() < until:
            fault = rng.choices(stage.faults, weights)[0]
            if fault.inflict(rng):
                self.summary.faults[fault.name] += 1
            time.sleep(rng.uniform(*stage.pause_s))


class _Kept:
    """A sink that keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def begin(self, call: Call) -> None:
        self.calls.append(call)

    def end(self, call: Call) -> None:
        """It is in the list."""
