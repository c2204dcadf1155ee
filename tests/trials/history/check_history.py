"""The long form: a hundred thousand calls on every backend while faults are injected, judged for linearizability.

    make check-history ARGS="--backends etcd35,sqlite --calls 20000 --seed 7 --out /tmp/histories"

Prints progress, writes `summary.json` and, for a history that is not linearizable, `bad-<backend>.json` (whole) and
`bad-<backend>.txt` (made small, for people) into the directory. The exit code is 0 only if every run counts and is
good.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from trials.history.run import Run, Summary, repeated
from trials.history.setups import BACKENDS, ON_REQUEST, setup_of
from trials.judges.linearizable.checker import minimise, timeline

_ROOT = Path(__file__).parents[3]
_PROGRESS_S = 10.0
_ALL = (*BACKENDS, *ON_REQUEST)


def main() -> int:
    options = _options()
    names = options.backends.split(",")
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
    if len(names) == 1:
        return _check(names[0], options, out)
    with ThreadPoolExecutor(options.jobs) as pool:
        codes = list(pool.map(lambda name: _in_own_process(name, options), names))
    summaries = [json.loads((out / f"summary-{name}.json").read_text()) for name in names]
    (out / "summary.json").write_text(json.dumps(summaries, indent=1) + "\n")
    print(_table(summaries))
    return max(codes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default=",".join(BACKENDS), help=f"also {', '.join(ON_REQUEST)}")
    parser.add_argument("--calls", type=int, default=100_000, help="at least so many on each backend")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--round-s", type=float, default=4.0)
    parser.add_argument("--limit-s", type=float, default=1800.0, help="of each backend; a run cut off does not count")
    parser.add_argument("--jobs", type=int, default=2, help="backends side by side")
    parser.add_argument("--list", action="store_true", help="only say which faults there are")
    parser.add_argument("--out", default=str(_ROOT / "target" / "histories"))
    return parser.parse_args()


def _in_own_process(name: str, options: argparse.Namespace) -> int:
    arguments = [f"--backends={name}"]
    arguments += [f"--{each.replace('_', '-')}={getattr(options, each)}" for each in _PASSED]
    return subprocess.run([sys.executable, __file__, *arguments], check=False).returncode


_PASSED = ("calls", "seed", "round_s", "limit_s", "out")


def _check(name: str, options: argparse.Namespace, out: Path) -> int:
    told = [0.0]

    def progress(summary: Summary) -> None:
        if time.monotonic() - told[0] >= _PROGRESS_S:
            told[0] = time.monotonic()
            print(summary.told(), flush=True)

    def run() -> Summary:
        with tempfile.TemporaryDirectory(prefix="latchwork-history-") as directory:
            one = Run(name, Path(directory), options.seed, round_s=options.round_s)
            return one.until(options.calls, limit_s=options.limit_s, progress=progress)

    summary = repeated(run)
    print(f"done: {summary.told()}", flush=True)
    (out / f"summary-{name}.json").write_text(json.dumps(summary.as_json(), indent=1) + "\n")
    if summary.bad is not None:
        (out / f"bad-{name}.json").write_text(json.dumps(summary.bad.as_json()) + "\n")
        small = timeline(minimise(summary.bad))
        (out / f"bad-{name}.txt").write_text("\n".join([*summary.problems, "", small]))
        print(f"{name}: the history is in {out}/bad-{name}.json; made small:\n{small}", flush=True)
    if summary.problems:
        return 1
    if summary.spoilt:
        print(f"{name}: the servers lost data in every try, so nothing is shown", flush=True)
        return 1
    if not summary.counts or summary.calls < options.calls:
        print(f"{name}: not enough calls, faults or unknown outcomes for this run to count", flush=True)
        return 1
    return 0


def _table(summaries: list[dict]) -> str:
    lines = ["backend        calls  unknown  refused  faults  rounds  seconds  problems"]
    for each in summaries:
        answers = each["answers"]
        lines.append(
            f"{each['backend']:<13}{each['calls']:>7}{answers['unknown']:>9}{answers['refused']:>9}"
            f"{sum(each['faults'].values()):>8}{each['rounds']:>8}{each['seconds']:>9}{len(each['problems']):>10}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
