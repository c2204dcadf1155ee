"""One process of the demo's cluster: `python -m latchwork.demo.node`, which only the demo starts.

The URL is in the environment, because everybody can read a command line.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from latchwork.demo.corpus import find_items
from latchwork.demo.job import CountJob
from latchwork.errors import LatchworkError
from latchwork.jobs import JobManager
from latchwork.store import connect


def main() -> int:
    """Run a node of the demo until SIGTERM. Return the exit code."""
    parser = argparse.ArgumentParser(description="One process of the demo; `latchwork demo` starts it.")
    parser.add_argument("--node-id", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--extra", required=True, type=Path)
    parser.add_argument("--pace-s", required=True, type=float)
    parser.add_argument("--ttl-s", required=True, type=float)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    try:
        with connect(root=given.root, session_ttl_s=given.ttl_s) as store:
            job = CountJob(find_items(given.extra), given.pace_s)
            JobManager(
                store,
                given.node_id,
                [job],
                session_ttl_s=given.ttl_s,
                lock_ttl_s=given.ttl_s,
                close_timeout_s=5.0,
            ).run_forever()
    except LatchworkError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - its stderr is its log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
