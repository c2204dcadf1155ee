"""The command ``python -m latchwork_testkit.backend_template FOLDER``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from latchwork_testkit.backend_template import copy_template


def main() -> int:
    """Copy the template to the folder of the command line, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m latchwork_testkit.backend_template",
        description="Copy the template of a backend, a complete distribution of 650 lines, to a new folder.",
        epilog="Rename the package and the scheme, and run the conformance kit: docs, how-to, write a backend.",
    )
    parser.add_argument("folder", type=Path, help="the folder to create")
    folder = parser.parse_args().folder
    try:
        copy_template(folder)
    except FileExistsError:
        sys.stderr.write(f"{folder} exists; give the name of a folder that does not exist\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"{folder} cannot be written: {error.strerror or error}\n")
        return 1
    sys.stdout.write(f"created {folder}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
