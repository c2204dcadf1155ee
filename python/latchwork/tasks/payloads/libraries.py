"""The libraries of two extras, imported at their first use. Nothing here touches the network."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from latchwork.errors import BackendNotInstalled


@cache
def msgpack() -> Any:
    """The module ``msgspec.msgpack``.

    Raises:
        BackendNotInstalled: msgspec is missing.
    """
    return _needed("msgspec.msgpack", "msgspec", "tasks", "tasks are stored with")


@cache
def cloudpickle() -> Any:
    """The module ``cloudpickle``.

    Raises:
        BackendNotInstalled: it is missing.
    """
    return _needed("cloudpickle", "cloudpickle", "pickle", "pickled functions need")


def _needed(module: str, package: str, extra: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise BackendNotInstalled(
            f'{what} the package {package}; install it with pip install "latchwork[{extra}]"'
        ) from error
