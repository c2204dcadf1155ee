"""The input of the demo: the standard library of this machine, and how it is counted.

An item is a top-level module or package with Python source. Test suites (folders named `test`, `tests` or `idle_test`),
installed packages and compiled modules are excluded. Nothing here uses a store.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from latchwork._base.decoding import Whole

#: An item that no Python can parse, added on purpose: both counts have to agree on it too.
BROKEN_ITEM = "broken_on_purpose"
_BROKEN_SOURCE = "def half(:\n    return 1\n\nclass Never:\n    pass\n"
_LEFT_OUT = {"__pycache__", "dist-packages", "idle_test", "lib-dynload", "site-packages", "test", "tests"}

Items = Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of some files.

    Attributes:
        functions: Functions, including async and nested ones and methods.
        classes: Classes, including nested ones.
        unparsable: Files that are not valid Python. Only their lines count.
    """

    files: Whole = 0
    lines: Whole = 0
    functions: Whole = 0
    classes: Whole = 0
    unparsable: Whole = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Counts)))


def write_broken_item(folder: Path) -> None:
    """Write a source file that cannot be parsed into a folder."""
    (folder / f"{BROKEN_ITEM}.py").write_text(_BROKEN_SOURCE, encoding="utf-8")


def find_items(extra: Path) -> dict[str, tuple[Path, ...]]:
    """Return the items to count: the modules and packages of the standard library and of one more folder.

    Args:
        extra: The other folder.
    Returns:
        The sorted source files of each item, sorted by item.
    """
    found: dict[str, tuple[Path, ...]] = {}
    for folder in (Path(sysconfig.get_path("stdlib")), extra):
        for path in folder.iterdir():
            files = _sources(path)
            if files:
                found[path.stem] = tuple(sorted({*found.get(path.stem, ()), *files}))
    return dict(sorted(found.items()))


def count_files(files: Iterable[Path]) -> Counts:
    """Parse files and count their lines, functions and classes."""
    return sum((_count(path.read_bytes()) for path in files), Counts())


def count_serially(items: Items) -> Counts:
    """Count all items one after the other in this process, to compare with the totals of the cluster."""
    return sum((count_files(files) for files in items.values()), Counts())


def _sources(path: Path) -> list[Path]:
    if path.suffix == ".py" and path.is_file():
        return [path]
    if not path.is_dir() or not path.name.isidentifier() or path.name in _LEFT_OUT:
        return []
    inside = [found for found in path.rglob("*.py") if not _LEFT_OUT.intersection(found.relative_to(path).parts)]
    return [found for found in inside if found.is_file()]


def _count(source: bytes) -> Counts:
    lines = len(source.splitlines())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules use escapes that Python warns of
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return Counts(files=1, lines=lines, unparsable=1)
    functions = sum(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in nodes)
    classes = sum(isinstance(node, ast.ClassDef) for node in nodes)
    return Counts(files=1, lines=lines, functions=functions, classes=classes)
