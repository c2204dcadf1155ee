"""Lists the installed programs of test servers: `python -m latchwork_testkit`. The exit status is 3 if one is
missing.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from latchwork_testkit.binaries import (
    ETCD_VERSIONS,
    ServerMissing,
    find_etcd,
    find_ip_command,
    find_java,
    find_zookeeper_classpath,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MISSING_STATUS = 3  # not 1, which Python returns if it cannot start the program


def main() -> int:
    """Print each program that was found, and on standard error each one that is missing. Return the exit status."""
    searches: dict[str, Callable[[], object]] = {f"etcd {v}": partial(find_etcd, v) for v in ETCD_VERSIONS}
    searches |= {"java": find_java, "zookeeper": find_zookeeper_classpath}
    if os.geteuid() == 0:  # only root can create network namespaces
        searches["ip"] = find_ip_command
    status = 0
    for name, search in searches.items():
        try:
            sys.stdout.write(f"{name}: {search()}\n")
        except ServerMissing as error:
            sys.stderr.write(f"{error}\n")
            status = MISSING_STATUS
    return status


if __name__ == "__main__":
    sys.exit(main())
