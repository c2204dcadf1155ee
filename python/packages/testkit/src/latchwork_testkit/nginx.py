"""Finds nginx, the reverse proxy that tests put in front of the pages of workflows."""

from __future__ import annotations

import os
import shutil
import sys

from latchwork_testkit.binaries import ServerMissing


def find_nginx() -> str:
    """Return the path of nginx: $LATCHWORK_NGINX, the one that scripts/install_nginx installed, or the one of the
    system.

    Raises:
        ServerMissing: nginx is not installed.
    """
    given = os.environ.get("LATCHWORK_NGINX")
    for name in (given,) if given else (f"{sys.prefix}/nginx/usr/sbin/nginx", "nginx", "/usr/sbin/nginx"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise ServerMissing("nginx is not installed; run scripts/install_nginx, or set LATCHWORK_NGINX to the program")
