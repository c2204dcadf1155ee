"""Finds Chromium, the browser that tests use through Playwright."""

from __future__ import annotations

import os
import shutil

from latchwork_testkit.binaries import ServerMissing

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    """Return the path of Chromium: $LATCHWORK_CHROMIUM, or the first of its usual names on the PATH.

    Raises:
        ServerMissing: Chromium is not installed.
    """
    given = os.environ.get("LATCHWORK_CHROMIUM")
    for name in (given,) if given else _NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    raise ServerMissing(
        "Chromium is not installed; install Debian's package chromium, or set LATCHWORK_CHROMIUM to a browser's program"
    )
