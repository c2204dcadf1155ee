"""A cluster under faults for minutes, and a verdict. Exit code 1 when anything happened that must not.

At least 5 faults of each kind have to land; a run of less than 4 minutes has no time for that, and says so.

make check WHAT=chaos ARGS="--backend etcd35 --minutes 5 --seed 7"
make check WHAT=chaos ARGS="--of executor --backend zookeeper --minutes 10"
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from backends_table import SHARED as BACKENDS
from backends_table import is_there
from trials.chaos import executor_storm, storm

#: What is hurt: its storm, and the kinds of faults that it has.
STORMS = {
    "jobs": (storm.Storm, storm.kinds_of),
    "executor": (executor_storm.ExecutorStorm, executor_storm.kinds_of),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=[*BACKENDS, "all"], default="all", help="which server (default: all)")
    parser.add_argument("--of", choices=[*STORMS, "all"], default="all", help="what is hurt (default: all)")
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes of faults for each (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="which series of faults (default: 1)")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON; progress goes to stderr")
    parser.add_argument("--list", action="store_true", help="only say which kinds of faults there are")
    options = parser.parse_args()
    backends = list(filter(is_there, BACKENDS)) if options.backend == "all" else [options.backend]
    whats = list(STORMS) if options.of == "all" else [options.of]
    plays = [(what, backend) for what in whats for backend in backends]
    if options.list:
        print("\n".join(f"{what}, {backend}, {kind}" for what, backend in plays for kind in STORMS[what][1](backend)))
        return 0
    reports = []
    for what, backend in plays:
        folder = tempfile.mkdtemp(prefix=f"latchwork-chaos-{what}-{backend}-")
        print(f"{what} on {backend}: seed {options.seed}, logs in {folder}", file=sys.stderr)
        with STORMS[what][0](backend, options.seed, folder) as blown:
            report = blown.blow(options.minutes * 60, lambda text: print(f"  {text}", file=sys.stderr))
        report.demand(blown.kinds(), options.minutes)
        for note in report.notes:
            print(f"  {note}", file=sys.stderr)
        reports.append(report)
        if not options.json:
            print(json.dumps(report.to_json(), indent=2))
    if options.json:
        print(json.dumps([report.to_json() for report in reports], indent=2))
    return 0 if all(report.ok for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
