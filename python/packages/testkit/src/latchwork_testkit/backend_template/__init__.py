"""Copies the template of a backend: `python -m latchwork_testkit.backend_template my-backend`.

The folder ``project`` holds a complete distribution, whose backend keeps its data in JSON files and passes the
conformance kit.
"""

from __future__ import annotations

import shutil
from pathlib import Path

TEMPLATE = Path(__file__).parent / "project"


def copy_template(folder: Path) -> None:
    """Copy the template of a backend to a new folder.

    Args:
        folder: The folder to create.
    Raises:
        FileExistsError: The folder exists already.
    """
    shutil.copytree(TEMPLATE, folder, ignore=shutil.ignore_patterns("__pycache__"))
