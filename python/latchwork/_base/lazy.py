"""Lazy imports: a package whose names are imported on first use.

Such a package lists its names for type checkers behind ``TYPE_CHECKING``, and again in the table that it passes to
``late``.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # as typing has it, without importing typing: `import latchwork` is quick
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_getattr(package: str, modules: Mapping[str, tuple[str, ...]], *, extra: str = "") -> Callable[[str], Any]:
    """Return a module-level ``__getattr__`` for a package, which imports the package's names on first use.

    A name that is not in the table is looked up as a module of the package.

    Args:
        package: The name of the package.
        modules: The public names of each module. None of them may also be the name of a module of the package.
        extra: The extra of latchwork to suggest if a library is not installed. Empty for none.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def found(name: str) -> Any:
        if name in places:
            value = getattr(_imported(places[name], package, extra), name)
            setattr(sys.modules[package], name, value)  # the next access does not come here
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
