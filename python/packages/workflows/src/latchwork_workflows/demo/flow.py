"""The workflow of the demonstration. Every task imports this module, so it imports little."""

from __future__ import annotations

import ast
import sysconfig
import warnings
from pathlib import Path

from latchwork_workflows import task, workflow

FILES = 36
PARTS = 8


@task
def split(files: int, parts: int) -> dict[str, list[list[str]]]:
    """Divide the first source files of the standard library into parts."""
    names = sorted(path.name for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))[:files]
    return {"parts": [names[first::parts] for first in range(parts)]}


@task(retries=0)
def count(part: list[str]) -> dict[str, int]:
    """Count the lines and functions of some files."""
    lines = functions = 0
    for name in part:
        source = (Path(sysconfig.get_path("stdlib")) / name).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules use escapes that Python warns of
            nodes = ast.walk(ast.parse(source))
        lines += len(source.splitlines())
        functions += sum(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in nodes)
    return {"lines": lines, "functions": functions}


@task
def total(lines: list[int], functions: list[int]) -> dict[str, int]:
    """Add up the counts of all parts."""
    return {"lines": sum(lines), "functions": sum(functions)}


@workflow
def demo(files: int = FILES, parts: int = PARTS) -> None:
    """Count the standard library, a task for each part."""
    counted = split(files, parts).map(count, "parts")
    total(counted["lines"], counted["functions"])
