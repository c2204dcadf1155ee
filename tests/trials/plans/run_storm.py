"""Plans under faults for minutes, and a verdict. Exit code 1 when anything happened that must not.

make check WHAT=plans-chaos ARGS="--backend etcd35 --minutes 10 --seed 7"
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from backends_table import SHARED, is_there
from trials.plans.storm import Storm


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=[*SHARED, "all"], default="all", help="which server (default: all)")
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes of faults for each (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="which series of faults (default: 1)")
    options = parser.parse_args()
    failed = False
    for backend in filter(is_there, SHARED) if options.backend == "all" else [options.backend]:
        folder = tempfile.mkdtemp(prefix=f"latchwork-plans-{backend}-")
        print(f"{backend}: seed {options.seed}, logs in {folder}", file=sys.stderr)
        with Storm(backend, options.seed, folder) as storm:
            report = storm.blow(options.minutes * 60, lambda text: print(f"  {text}", file=sys.stderr))
        print(json.dumps(report.to_json(), indent=2))
        failed |= bool(report.violations)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
