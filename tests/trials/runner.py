"""What the long forms share: plays one after the other, a line for each, a table at the end, and what fails the run."""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from backends_table import SHARED as BACKENDS
from backends_table import is_there

_MOST_TOLD = 12


@dataclass(frozen=True)
class Verdict:
    """Of one play; ``violations`` are sentences, figures that end in ``_s`` are seconds."""

    backend: str
    fault: str
    what: str
    took_s: float
    violations: list[str]
    figures: dict[str, float] = field(default_factory=dict)

    def describe(self) -> str:
        """For people: a line, and what was wrong below it."""
        state = "BAD" if self.violations else "ok "
        figures = [f"{name}={value:g}" for name, value in self.figures.items()]
        line = " ".join([f"{state} {self.backend}, {self.fault}, {self.what}: {self.took_s} s", *figures])
        return "\n      ".join([line, *self.violations[:_MOST_TOLD]])


@dataclass(frozen=True)
class Planned:
    """One play of a long form that is yet to be given."""

    backend: str
    fault: str
    what: str
    give: Callable[[], Verdict]

    def given(self) -> Verdict:
        """A play that breaks off is a violation."""
        began = time.monotonic()
        try:
            return self.give()
        except Exception as error:
            broke_off = f"the play broke off: {error!r}\n{traceback.format_exc()}"
            return Verdict(self.backend, self.fault, self.what, round(time.monotonic() - began, 1), [broke_off])


def parser_of(doc: str, *, rounds: int) -> argparse.ArgumentParser:
    """The options that all plays have."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list", action="store_true", help="only say which plays there are")
    return parser


def backends_of(options: argparse.Namespace) -> list[str]:
    """Those asked for; without those that cannot be checked here, unless they are only listed."""
    return [backend for backend in options.backend or BACKENDS if options.list or is_there(backend)]


def give_all(plays: list[Planned], options: argparse.Namespace) -> int:
    """Give them, or list them; the exit status, which is 1 when there was a violation, and when there were no plays."""
    if options.list:
        print("\n".join(f"{play.backend}, {play.fault}, {play.what}" for play in plays))
        return 0
    verdicts = []
    for play in plays:
        verdicts.append(play.given())
        print(f"[{len(verdicts)}/{len(plays)}] {verdicts[-1].describe()}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1))
    print("\n".join(_table(verdicts)))
    broken = sum(bool(verdict.violations) for verdict in verdicts)
    print(f"\n{len(verdicts) - broken} of {len(verdicts)} plays kept every rule")
    return 1 if broken or not verdicts else 0


def _table(verdicts: list[Verdict]) -> Iterator[str]:
    """By backend and fault, then by backend alone: sums, and of seconds the median and the worst."""
    names = list(dict.fromkeys(name for verdict in verdicts for name in verdict.figures))
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for key in (lambda one: (one.backend, one.fault), lambda one: (one.backend, "all")):
        for verdict in verdicts:
            groups.setdefault(key(verdict), []).append(verdict)
    yield f"\n| {' | '.join(['backend', 'fault', 'plays', 'failed', *names])} |\n|{'---|' * (4 + len(names))}"
    for (backend, fault), group in groups.items():
        cells = [_cell(name, [verdict.figures.get(name, 0.0) for verdict in group]) for name in names]
        failed = sum(bool(verdict.violations) for verdict in group)
        yield f"| {' | '.join([backend, fault, str(len(group)), str(failed), *cells])} |"


def _cell(name: str, values: list[float]) -> str:
    return f"{statistics.median(values):.2f}, {max(values):.2f}" if name.endswith("_s") else f"{sum(values):,.0f}"
