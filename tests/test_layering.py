"""Layers: which package may import which, that add-ons import public names alone, and that no imports go in a circle.

docs/design/architecture.md draws the same table for people.
"""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from latchwork import spi

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "latchwork"

#: What every layer may import.
GROUND = {"_base", "errors", "types", "clock"}
STORE = GROUND | {"backends", "store"}
COORDINATION = STORE | {"primitives"}
HELPERS = COORDINATION | {"assignment", "schedules", "tasks"}
SYSTEMS = {"jobs", "worker_group", "executor", "plans"}
# Which parts of latchwork a part may import, besides itself: what is below its own floor.
MAY_IMPORT = {
    "_base": {"errors", "types", "clock"},
    "errors": set(),
    "types": set(),
    "clock": {"_base"},
    "_core": set(),
    "backends": GROUND | {"_core"},  # 2
    "store": GROUND | {"backends"},  # 3
    "drawing": GROUND,  # beside 1-3: pure
    "assignment": GROUND | {"_core"},  # 4
    "primitives": STORE,  # 5
    "schedules": COORDINATION,  # 5b
    "tasks": COORDINATION,  # 5b
    "jobs": HELPERS,  # 6: one system each, which never import each other
    "worker_group": HELPERS,
    "executor": HELPERS,
    "plans": HELPERS | {"drawing"},
    "aio": HELPERS | SYSTEMS,  # 6b
    "": HELPERS | SYSTEMS,  # latchwork/__init__.py
    "cli": HELPERS | SYSTEMS | {"", "demo", "aio", "drawing"},  # 8
    "demo": HELPERS | SYSTEMS | {""},  # 7
    "spi": HELPERS | SYSTEMS | {"cli"},  # 9
    "testing": HELPERS | SYSTEMS | {"", "_core", "aio"},
}
# Libraries and the only places that may import them, as the beginnings of module names.
LIBRARIES = {
    "kazoo": ("backends.zookeeper",),
    "grpc": ("backends.etcd",),
    "google": ("backends.etcd",),
    "psycopg": ("backends.postgres",),
    "sqlite3": ("backends.embedded",),
    "cronsim": ("schedules",),
    "msgspec": (
        "types",
        "backends.base",
        "store",
        "aio.wrapper",
        "_base",
        "primitives",
        "tasks",
        "executor",
        "plans",
        "worker_group",
        "jobs",
        "demo",
        "cli",
    ),
    "cloudpickle": ("tasks",),
    "typer": ("cli", "demo"),
    "click": ("cli", "demo"),
    "rich": ("cli", "demo"),
}
# One backend each; the other modules of `backends` are shared by them all.
BACKENDS = ("embedded", "etcd", "postgres", "zookeeper")
#: Packages whose modules are doors each. Everywhere else one comes in by the package, or by a wing of it.
OPEN_HOUSES = {"_base", "backends", "store", "testing", ""}
#: Distributions in python/packages, which latchwork never imports.
ADD_ONS = {path.name: path for path in PACKAGE.parent.glob("packages/*/src/*") if path.is_dir()}
#: Packages and modules of latchwork whose public names add-ons may import, besides ``latchwork.spi``.
PUBLIC = {
    *("latchwork", "latchwork.spi", "latchwork.errors", "latchwork.types", "latchwork.clock", "latchwork.testing"),
    *("latchwork.store", "latchwork.primitives", "latchwork.assignment", "latchwork.schedules", "latchwork.drawing"),
    *("latchwork.tasks", "latchwork.tasks.children", "latchwork.jobs", "latchwork.executor", "latchwork.plans"),
    *("latchwork.worker_group", "latchwork.aio"),
}
#: Private modules that an add-on imports today. The list only gets shorter: `bench cluster` measures the manager.
NOT_PUBLIC_YET = {
    ("latchwork_testkit", name)
    for name in ("_core", "backends.etcd", "jobs.manager", "jobs.node", "jobs.stored", "jobs.worker")
}


@dataclass(frozen=True)
class Import:
    """`target` is a module name; of latchwork's own the part after "latchwork.", "" being the package itself."""

    importer: str
    line: int
    target: str
    own: bool


def module_name(path, package):
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path, package):
    importer = module_name(path, package)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield classified(importer, node.lineno, alias.name, package.name)
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(node, path, package)
            for name in targets(base, [alias.name for alias in node.names], package):
                yield classified(importer, node.lineno, name, package.name)


def absolute_base(node, path, package):
    if not node.level:
        return node.module
    here = [package.name, *path.relative_to(package).parent.parts]
    return ".".join([*here[: len(here) - node.level + 1], *([node.module] if node.module else [])])


def targets(base, names, package):
    """`from a import b` imports module a.b where there is one, else only a."""
    if base.partition(".")[0] != package.name:
        return [base]
    folder = package.joinpath(*base.split(".")[1:])
    submodules = [name for name in names if (folder / f"{name}.py").exists() or (folder / name).is_dir()]
    if base == "latchwork" and "_core" in names:
        submodules.append("_core")
    rest = [] if len(submodules) == len(names) else [base]
    return rest + [f"{base}.{name}" for name in submodules]


def classified(importer, line, name, package):
    own = name.partition(".")[0] == package
    return Import(importer, line, name.partition(".")[2] if own else name, own)


def part(module):
    return module.split(".")[0]


def backend_of(module):
    parts = module.split(".")
    if parts[0] != "backends" or len(parts) < 2:
        return None
    return next((name for name in BACKENDS if parts[1].startswith(name)), None)


def complaint(found, package):
    """Why this import is against the table; None when it is not."""
    importer, target = found.importer, found.target
    if part(importer) not in MAY_IMPORT:
        return f"{part(importer)} has no floor: add it to MAY_IMPORT, and to the map"
    if part(target) in ADD_ONS:
        return f"latchwork may not import the add-on {part(target)}"
    if not found.own:
        homes = LIBRARIES.get(part(target))
        allowed = homes is None or importer.startswith(homes) or part(importer) == "testing"
        return None if allowed else f"only {' and '.join(homes)} may import {part(target)}"
    if part(importer) == part(target):
        return sibling_complaint(importer, target)
    if part(target) not in MAY_IMPORT[part(importer)]:
        return f"layer of {part(importer) or 'latchwork/__init__'} may not import {part(target) or 'latchwork itself'}"
    return window_complaint(importer, target, package)


def window_complaint(importer, target, package):
    """Import from a package, a module directly in it, or a sub-package: never from a module inside a sub-package."""
    is_inside = target.count(".") > 1 and package.joinpath(*target.split(".")).with_suffix(".py").exists()
    is_open = part(target) in OPEN_HOUSES or part(importer) in {"testing", "spi"}
    if not is_inside or is_open or is_exported(target, package):
        return None
    return f"{importer} comes in by the window {target}: export it in an __init__, and import it from there"


def is_exported(target, package):
    """Whether the wing has the module in its ``__all__``: as a name for what is in it, like ``keys``."""
    wing, _, name = target.rpartition(".")
    door = package.joinpath(*wing.split("."), "__init__.py")
    return door.exists() and re.search(rf'__all__ = .*"{name}"', door.read_text(), re.DOTALL) is not None


def sibling_complaint(importer, target):
    ours, theirs = backend_of(importer), backend_of(target)
    if ours != theirs and ours and theirs:
        return f"backend {ours} may not import backend {theirs}"
    return None


def complaints(package):
    found = [each for path in sorted(package.rglob("*.py")) for each in imports_of(path, package)]
    judged = [(each, complaint(each, package)) for each in found]
    return [f"{each.importer or '__init__'}:{each.line}: {why}" for each, why in judged if why]


def circles(package):
    """Groups of modules that import each other, TYPE_CHECKING imports included; doors (`__init__`) do not count."""
    modules = {module_name(path, package): path for path in package.rglob("*.py") if path.name != "__init__.py"}
    graph = {
        name: {each.target for each in imports_of(path, package) if each.own and each.target in modules} - {name}
        for name, path in modules.items()
    }
    reached = {name: reach(name, graph) for name in graph}
    rings = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted(sorted(ring) for ring in rings if ring)


def reach(name, graph):
    seen, left = set(), [name]
    while left:
        for other in graph[left.pop()] - seen:
            seen.add(other)
            left.append(other)
    return seen


def test_imports_go_downwards_only_and_by_the_doors():
    assert complaints(PACKAGE) == []


def test_no_module_imports_one_that_imports_it():
    assert circles(PACKAGE) == []


@pytest.mark.parametrize("name", sorted(ADD_ONS))
def test_an_add_on_imports_public_names_and_the_spi_alone(name):
    used = {each for path in ADD_ONS[name].rglob("*.py") for each in names_of_latchwork(path)}
    private = {(module, imported) for module, imported in used if not is_public(module, imported)}
    known = {f"latchwork.{module}" for add_on, module in NOT_PUBLIC_YET if add_on == name}
    assert {module for module, _ in private} == known
    assert len(used) > 20


def names_of_latchwork(path):
    """Pairs of a module of latchwork and a name that a file imports from it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "latchwork":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names if each.name.partition(".")[0] == "latchwork")


def is_public(module, name):
    names = getattr(importlib.import_module(module), "__all__", None) if module in PUBLIC else ()
    return name in {*names, ""} if names else module in PUBLIC and not name.startswith("_")


@pytest.mark.parametrize("name", sorted(ADD_ONS))
def test_no_module_of_an_add_on_imports_one_that_imports_it(name):
    assert circles(ADD_ONS[name]) == []


def test_the_base_of_pages_knows_nothing_of_workflows():
    package = ADD_ONS["latchwork_workflows"]
    found = [each for path in (package / "web").rglob("*.py") for each in imports_of(path, package)]
    assert {part(each.target) for each in found if each.own} == {"web"}


def test_there_are_at_most_90_names_for_add_ons_and_each_is_documented():
    page = (PACKAGE.parents[1] / "docs" / "reference" / "spi.md").read_text(encoding="utf-8")
    assert len(spi.__all__) <= 90
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(spi.__all__)


def test_there_are_imports_to_judge():
    found = [each for path in PACKAGE.rglob("*.py") for each in imports_of(path, PACKAGE)]
    assert sum(each.own for each in found) > 50
    assert {part(each.importer) for each in found} >= {"backends", "store", "assignment", "primitives", "jobs", "cli"}


@pytest.mark.parametrize(
    ("file", "code", "why"),
    [
        ("errors.py", "import latchwork.store", "errors may not import store"),
        ("errors.py", "from latchwork import types", "errors may not import types"),
        ("backends/base.py", "from latchwork.store import Store", "backends may not import store"),
        ("backends/etcd/client.py", "from ...store.session import Session", "backends may not import store"),
        ("store/store.py", "from latchwork.primitives.latch import LeaderLatch", "store may not import primitives"),
        ("store/store.py", "def f():\n    from latchwork.jobs import Job", "store may not import jobs"),
        ("store/store.py", "import latchwork", "store may not import latchwork itself"),
        ("store/store.py", "from latchwork import Store", "store may not import latchwork itself"),
        ("assignment/model.py", "from latchwork.store import Store", "assignment may not import store"),
        ("primitives/latch.py", "from latchwork.assignment import Plan", "primitives may not import assignment"),
        ("jobs/job.py", "from latchwork import _core", "jobs may not import _core"),
        ("jobs/job.py", "from latchwork.cli.main import main", "jobs may not import cli"),
        ("jobs/job.py", "from latchwork.testing import faults", "jobs may not import testing"),
        ("jobs/job.py", "from latchwork.executor import Executor", "jobs may not import executor"),
        ("jobs/job.py", "from latchwork.primitives.fair.lock import Lock", "by the window primitives.fair.lock"),
        ("cli/main.py", "from latchwork.testing.faults import Fault", "cli may not import testing"),
        ("__init__.py", "from latchwork.testing import faults", "latchwork/__init__ may not import testing"),
        ("testing/faults.py", "from latchwork_testkit import servers", "may not import the add-on latchwork_testkit"),
        ("__init__.py", "from .cli import main", "latchwork/__init__ may not import cli"),
        ("backends/etcd/client.py", "from latchwork.backends.zookeeper import x", "etcd may not import backend zoo"),
        ("backends/etcd/client.py", "import kazoo.client", r"only backends\.zookeeper may import kazoo"),
        ("backends/zookeeper/client.py", "import grpc", r"only backends\.etcd may import grpc"),
        ("backends/etcd/client.py", "import sqlite3", r"only backends\.embedded may import sqlite3"),
        ("store/store.py", "from kazoo.client import KazooClient", r"only backends\.zookeeper may import kazoo"),
        ("jobs/job.py", "import cronsim", "only schedules may import cronsim"),
        ("jobs/job.py", "import typer", "only cli and demo may import typer"),
        ("novelty/x.py", "import os", "novelty has no floor"),
    ],
)
def test_import_against_the_table_is_found(tmp_path, file, code, why):
    package = make_package(tmp_path, file, code)
    (found,) = complaints(package)
    assert why.replace("\\", "") in found


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("backends/etcd/client.py", "import grpc\nfrom latchwork.backends.base import Backend"),
        ("backends/etcd/client.py", "from ..base import Backend\nfrom ...errors import Conflict\nfrom . import rpc"),
        ("backends/url.py", "from latchwork.backends.etcd import open"),
        ("assignment/strategies.py", "from latchwork import _core\nfrom latchwork._core import fast"),
        ("jobs/job.py", "from latchwork.assignment import Plan\nfrom latchwork.jobs.keys import x"),
        ("jobs/job.py", "from latchwork.primitives import Lock\nfrom latchwork.primitives.fair import Turn"),
        ("demo/a.py", "from latchwork.demo import b\nfrom . import c\nfrom latchwork import Store"),
        ("cli/main.py", "import latchwork\nfrom latchwork.demo import run_demo\nimport rich.table"),
        ("testing/faults.py", "import kazoo\nfrom latchwork.backends.base import Backend"),
    ],
)
def test_import_within_the_table_is_left_alone(tmp_path, file, code):
    assert complaints(make_package(tmp_path, file, code)) == []


def test_a_circle_is_found_also_of_imports_for_type_checkers(tmp_path):
    package = make_package(tmp_path, "store/store.py", "from latchwork.store.session import Session")
    code = "if TYPE_CHECKING:\n    from latchwork.store.store import Store"
    (package / "store/session.py").write_text(code)
    assert circles(package) == [["store.session", "store.store"]]


def make_package(tmp_path, file, code):
    package = tmp_path / "latchwork"
    for folder in ("demo", "backends/etcd", "backends/zookeeper", "store", "primitives/fair", "jobs"):
        (package / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("assignment", "cli", "testing", "novelty"):
        (package / folder).mkdir(exist_ok=True)
    for module in ("errors", "types", "store/session", "testing/faults", "primitives/fair/lock"):
        (package / f"{module}.py").touch()
    (package / file).write_text(code)
    return package
