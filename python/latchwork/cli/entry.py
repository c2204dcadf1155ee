"""The console script. It imports nothing of the extra `cli`, so that it can name the extra if it is missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import latchwork

_LIBRARIES = ("rich", "typer")


def main() -> None:
    """Run the command line of latchwork with the arguments of this process, and exit.

    If the libraries of the extra ``cli`` are not installed, print how to install them and exit with 1. Other import
    errors are raised.
    """
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        sys.exit(f'error: the command line needs {" and ".join(missing)}; run: pip install "latchwork[cli]"')
    if sys.argv[1:] == ["--version"]:  # without the parser, which takes longer than the rest
        print(f"latchwork {latchwork.__version__}")  # noqa: T201 - nothing of a store
        return
    try:
        from latchwork.cli.main import main as run

        run()
    except KeyboardInterrupt:  # while it is imported, or before a command has begun; they tell the same themselves
        sys.stderr.write("interrupted\n")
        sys.exit(130)
