"""Where CPython's own tests of executors are: the interpreter has them, or a folder.

They come with the interpreter's package ``test``; where that was left out, from the folder in LATCHWORK_CPYTHON_TESTS
(that of the same version: ``Lib/test``), from .venv, where scripts/get_cpython_tests puts them, or from where Debian's
libpython3-testsuite does. LATCHWORK_CPYTHON_TESTS=none goes without them. Run as a script it says, by its exit status,
whether they are there.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

PACKAGE = "test.test_concurrent_futures"
#: What goes without them, as it was told to.
IS_LEFT_OUT = os.environ.get("LATCHWORK_CPYTHON_TESTS") == "none"


def folders():
    given = os.environ.get("LATCHWORK_CPYTHON_TESTS")
    lib = f"usr/lib/python{sys.version_info.major}.{sys.version_info.minor}/test"
    return [Path(given)] if given else [Path(sys.prefix) / "cpython-tests" / lib, Path("/") / lib]


def files():
    """The module or package in each folder, and where its parts are."""
    for folder in folders():
        for file, inside in (("test_concurrent_futures.py", None), ("test_concurrent_futures/__init__.py", folder)):
            if (folder / file).exists():
                yield folder / file, [str(folder / "test_concurrent_futures")] if inside else None


def is_there():
    try:
        found = importlib.util.find_spec(PACKAGE)
    except ImportError:
        found = None
    return IS_LEFT_OUT or found is not None or any(True for _ in files())


def load(part):
    """The module that has a class; None where the tests are not."""
    try:
        whole = importlib.import_module(PACKAGE)
    except ImportError:
        whole = _from_folders()
    if whole is None or not hasattr(whole, "__path__"):
        return whole
    return importlib.import_module(f"{PACKAGE}.{part}")


def _from_folders():
    for file, where in files():
        spec = importlib.util.spec_from_file_location(PACKAGE, file, submodule_search_locations=where)
        module = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = module
        spec.loader.exec_module(module)
        return module
    return None


if __name__ == "__main__":
    sys.exit(not is_there())
