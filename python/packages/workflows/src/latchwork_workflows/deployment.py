"""Workflows of a Python module, with their code as a bundle that their versions pin."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from latchwork_workflows.bundles import BadBundle, pack_bundle
from latchwork_workflows.logs import LogStore
from latchwork_workflows.model.builder import Workflow
from latchwork_workflows.model.definition import Definition


def list_workflows(module: ModuleType) -> list[Workflow]:
    """Return the workflows that a module defines, in their order, without duplicates."""
    found = {id(each): each for each in vars(module).values() if isinstance(each, Workflow)}
    return list(found.values())


def find_code_path(module: ModuleType) -> Path:
    """Return the path of the code to pack: the file of a module, or the folder of its package.

    Raises:
        BadBundle: The module has no file.
    """
    if module.__file__ is None:
        raise BadBundle(f"module {module.__name__} has no file to make a bundle of; deploy without a bundle")
    path = Path(module.__file__)
    depth = module.__name__.count(".") + (path.name == "__init__.py")
    if depth == 0:
        return path
    return path.parents[depth - 1]


def store_bundle(module: ModuleType, logs: LogStore) -> str:
    """Pack the code of a module into the log store, and return its SHA-256.

    Raises:
        BadBundle: There is no code, or too much.
        OSError: The log store cannot be written.
    """
    bundle = pack_bundle(find_code_path(module))
    logs.put_file(bundle.file_name, bundle.data)
    return bundle.sha256


def set_bundle(definition: Definition, module: ModuleType, sha256: str) -> Definition:
    """Return a copy of a definition whose Python tasks use a code bundle.

    Args:
        definition: The definition.
        module: The module. Tasks with functions of other modules are not changed.
        sha256: The SHA-256 of the bundle with its code.
    """
    root = module.__name__.partition(".")[0]
    tasks = []
    for each in definition.tasks:
        function = each.params.get("function", "")
        is_ours = each.type == "python" and str(function).partition(":")[0].partition(".")[0] == root
        tasks.append(each.model_copy(update={"params": {**each.params, "bundle": sha256}}) if is_ours else each)
    return definition.model_copy(update={"tasks": tuple(tasks)})
