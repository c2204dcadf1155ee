"""Names of a package that are imported when they are first asked for: who needs one does not pay for all.

A package with such a door lists its names for type checkers as ever, behind ``TYPE_CHECKING``, and a second time here.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # as typing has it, without importing typing: `import latchwork` is quick
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def late(package: str, modules: Mapping[str, tuple[str, ...]], *, extra: str = "") -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose names are imported when they are first asked for.

    What is no such name is a module of the package, if there is one.

    Args:
        package: its name.
        modules: the names that each module has; none of them may be that of a module of the package.
        extra: what has to be installed for them, named where one needs a library that is not there; "" for nothing.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def found(name: str) -> Any:
        if name in places:
            value = getattr(_imported(places[name], package, extra), name)
            setattr(sys.modules[package], name, value)  # from now on nobody asks here
            return value
        missing = f"{package}.{name}"
        try:
            if not name.startswith("_"):
                return import_module(missing)
        except ModuleNotFoundError as error:
            if error.name != missing:
                raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return found


def _imported(module: str, package: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not extra or not error.name or error.name.startswith("latchwork"):
            raise
        what = f'{package} needs {error.name}; run: pip install "latchwork[{extra}]"'
        raise ModuleNotFoundError(what, name=error.name) from error
