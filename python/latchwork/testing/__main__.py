"""`python -m latchwork.testing` says which test servers are installed; exit status 1 when one is missing."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from latchwork.testing._binaries import (
    ETCD_VERSIONS,
    ServerMissing,
    find_etcd,
    find_java,
    find_zookeeper_classpath,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    """Print one line per program, errors on standard error; returns the number of missing ones, at most 1."""
    searches: dict[str, Callable[[], object]] = {f"etcd {v}": partial(find_etcd, v) for v in ETCD_VERSIONS}
    searches |= {"java": find_java, "zookeeper": find_zookeeper_classpath}
    missing = 0
    for name, search in searches.items():
        try:
            sys.stdout.write(f"{name}: {search()}\n")
        except ServerMissing as error:
            sys.stderr.write(f"{error}\n")
            missing = 1
    return missing


if __name__ == "__main__":
    sys.exit(main())
