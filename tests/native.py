"""The extension in processes of their own, with any interpreter: it needs nothing else of the project."""

from __future__ import annotations

import shutil
import subprocess
import sys

from latchwork import _core

LOAD = f"""\
import importlib.machinery, importlib.util
loader = importlib.machinery.ExtensionFileLoader("latchwork._core", {_core.__file__!r})
c = importlib.util.module_from_spec(importlib.util.spec_from_loader("latchwork._core", loader))
loader.exec_module(c)
"""


def run(code: str, *, interpreter: str = sys.executable, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run code with the extension as `c`."""
    return subprocess.run(
        [interpreter, "-c", LOAD + code], capture_output=True, text=True, timeout=timeout_s, check=False
    )


def interpreters() -> list[str]:
    """Return this interpreter and the others of this machine that can load the extension."""
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(11, 15):
        name = shutil.which(f"python3.{minor}")
        if (3, minor) not in found and name and run("", interpreter=name).returncode == 0:
            found[3, minor] = name
    return [found[version] for version in sorted(found)]
