"""Tasks that read source files. Workers import this module."""

import ast
import sysconfig
from collections import Counter
from pathlib import Path

from latchwork.tasks import Retry, task

ROOT = Path(sysconfig.get_path("stdlib"))


@task(name="library.measure", retry=Retry(attempts=3), timeout_s=60)
def measure(module: str) -> dict[str, object]:
    """Count the lines, functions, classes and imports of one file."""
    text = (ROOT / module).read_text(encoding="utf-8", errors="replace")
    nodes = list(ast.walk(ast.parse(text)))
    kinds = Counter(type(node).__name__ for node in nodes)
    imports = {name.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for name in node.names}
    imports |= {node.module.partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {
        "modules": 1,
        "lines": text.count("\n"),
        "functions": kinds["FunctionDef"] + kinds["AsyncFunctionDef"],
        "classes": kinds["ClassDef"],
        "imports": dict.fromkeys(sorted(imports), 1),
    }


@task(name="library.merge")
def merge(parts: list[dict[str, object]]) -> dict[str, object]:
    """Add up the counts of several files. The result has the same structure, so it can be merged again."""
    total: dict[str, object] = {}
    imports: Counter[str] = Counter()
    for part in parts:
        imports.update(part["imports"])
        for name in ("modules", "lines", "functions", "classes"):
            total[name] = total.get(name, 0) + part[name]
    return {**total, "imports": dict(imports)}


@task(name="library.report")
def report(total: dict[str, object]) -> str:
    """Return the counts as a sentence."""
    most = ", ".join(name for name, _ in Counter(total["imports"]).most_common(3))
    counts = "{modules} modules, {lines:,} lines, {functions:,} functions, {classes:,} classes".format(**total)
    return f"{counts}; most imported: {most}"
