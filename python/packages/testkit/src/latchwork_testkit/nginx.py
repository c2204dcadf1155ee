"""The reverse proxy that tests put before pages: Debian's nginx."""

from __future__ import annotations

import os
import shutil
import sys

from latchwork_testkit.binaries import ServerMissing


def find_nginx() -> str:
    """Return the program: $LATCHWORK_NGINX, the one that scripts/install_nginx unpacked, or that of the system.

    Raises:
        ServerMissing: there is none.
    """
    given = os.environ.get("LATCHWORK_NGINX")
    for name in (given,) if given else (f"{sys.prefix}/nginx/usr/sbin/nginx", "nginx", "/usr/sbin/nginx"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise ServerMissing("nginx is not installed; run scripts/install_nginx, or set LATCHWORK_NGINX to the program")
