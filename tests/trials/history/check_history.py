"""The long form: a hundred thousand calls on every backend while faults are injected, judged for linearizability.

    make check WHAT=history ARGS="--backends etcd35,sqlite --calls 20000 --seed 7 --out /tmp/histories"

Prints progress, writes `summary.json` and, for a history that is not linearizable, `bad-<backend>.json` (whole) and
`bad-<backend>.txt` (made small, for people) into the directory. The exit code is 0 only if every run counts and is
good.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from backends_table import BY_NAME, is_there
from latchwork_testkit.histories.calls import REFUSED, UNKNOWN
from latchwork_testkit.histories.checker import format_timeline, minimize_history
from trials.history.run import Run, Summary, repeated
from trials.history.setups import ON_REQUEST, setup_of
from trials.remote import Remote, Wire

_ROOT = Path(__file__).parents[3]
_PROGRESS_S = 10.0
_ALL = (*BY_NAME, *ON_REQUEST)


def main() -> int:
    options = _options()
    names = options.backends.split(",") if options.backends else [name for name in BY_NAME if is_there(name)]
    unknown = sorted(set(names) - set(_ALL))
    if unknown:
        print(f"unknown backends: {', '.join(unknown)}; there are {', '.join(_ALL)}", file=sys.stderr)
        return 2
    if options.list:
        for name in names:
            print("\n".join(f"{name}, {fault.name}, weight {fault.weight}" for fault in setup_of(name).faults))
        return 0
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        summaries = list(pool.map(lambda name: _recorded(name, options), names))
    (out / "summary.json").write_text(json.dumps([each.as_json() for each in summaries], indent=1) + "\n")
    print(_table(summaries))
    return int(any(_flaw(each, options.calls) for each in summaries))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", help=f"default: {', '.join(BY_NAME)}; also {', '.join(ON_REQUEST)}")
    parser.add_argument("--calls", type=int, default=100_000, help="at least so many on each backend")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--round-s", type=float, default=4.0)
    parser.add_argument("--limit-s", type=float, default=1800.0, help="of each backend; a run cut off does not count")
    parser.add_argument("--jobs", type=int, default=2, help="backends side by side")
    parser.add_argument("--list", action="store_true", help="only say which faults there are")
    parser.add_argument("--out", default=str(_ROOT / "target" / "histories"))
    return parser.parse_args()


def _recorded(name: str, options: argparse.Namespace) -> Summary:
    """Of one backend, in a process of its own."""
    found: list[Summary] = []
    process = Remote("trials.history.check_history:record", name, options, report=found.append)
    process.wait(None)
    process.kill()
    return found[0]


def record(wire: Wire, name: str, options: argparse.Namespace) -> None:
    """Record and judge one backend, and report the summary."""
    told = [0.0]

    def progress(summary: Summary) -> None:
        if time.monotonic() - told[0] >= _PROGRESS_S:
            told[0] = time.monotonic()
            print(summary.describe(), flush=True)

    def run() -> Summary:
        with tempfile.TemporaryDirectory(prefix="latchwork-history-") as directory:
            one = Run(name, Path(directory), options.seed, round_s=options.round_s)
            return one.until(options.calls, limit_s=options.limit_s, progress=progress)

    summary, out = repeated(run), Path(options.out)
    print(f"done: {summary.describe()} {_flaw(summary, options.calls)}", flush=True)
    if summary.bad is not None:
        (out / f"bad-{name}.json").write_text(json.dumps(summary.bad.as_json()) + "\n")
        small = format_timeline(minimize_history(summary.bad))
        (out / f"bad-{name}.txt").write_text("\n".join([*summary.problems, "", small]))
        print(f"{name}: the history is in {out}/bad-{name}.json; made small:\n{small}", flush=True)
    wire.report(summary)


def _flaw(summary: Summary, calls: int) -> str:
    """Why the run shows nothing good; empty if it does."""
    if summary.problems:
        return f"{summary.backend}: {len(summary.problems)} problems"
    if summary.spoilt:
        return f"{summary.backend}: the servers lost data in every try, so nothing is shown"
    if not summary.counts or summary.calls < calls:
        return f"{summary.backend}: not enough calls, faults or unknown outcomes for this run to count"
    return ""


def _table(summaries: list[Summary]) -> str:
    lines = [
        f"{each.backend:<13}{each.calls:>7}{each.answers[UNKNOWN]:>9}{each.answers[REFUSED]:>9}"
        f"{sum(each.faults.values()):>8}{each.rounds:>8}{each.seconds:>9.1f}{len(each.problems):>10}"
        for each in summaries
    ]
    return "\n".join(["backend        calls  unknown  refused  faults  rounds  seconds  problems", *lines])


if __name__ == "__main__":
    sys.exit(main())
