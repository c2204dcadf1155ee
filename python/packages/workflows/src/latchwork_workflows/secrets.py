"""Secrets by name, on the machine of a worker or master. They are never in a database, store, spec or log.

A secret belongs to a project, to the channels of alerts, or is shared by all of these. It is looked up in the
requesting scope and then among the shared secrets. In each scope, the variable comes before the file:

==========================  ====================================  ====================
scope                       variable                              file
==========================  ====================================  ====================
project ``default``         ``LATCHWORK_SECRET_<NAME>``           ``default/<name>``
another project             ``LATCHWORK_SECRET_<PROJECT>__<NAME>``  ``<project>/<name>``
channels of alerts          ``LATCHWORK_CHANNEL_SECRET_<NAME>``   ``@channels/<name>``
shared                      ``LATCHWORK_SHARED_SECRET_<NAME>``    ``@shared/<name>``
==========================  ====================================  ====================

The last source is packages with the entry point ``latchwork.workflow_secrets``: a function from name and scope to the
value, or None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from latchwork.errors import LatchworkError
from latchwork.spi import call_user, printable, reason, replace_file

GROUP = "latchwork.workflow_secrets"
VARIABLE = "LATCHWORK_SECRET_"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
#: Scopes that are not projects. No project can have such a name.
CHANNELS, SHARED = "@channels", "@shared"
_VARIABLES = {CHANNELS: "LATCHWORK_CHANNEL_SECRET_", SHARED: "LATCHWORK_SHARED_SECRET_"}
_DEFAULT = "default"
#: Projects whose secrets can be variables. With other names, the variables would be ambiguous.
_PLAIN = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*", re.ASCII)
_SEPARATOR = "__"
Provider = Callable[[str, str], "str | None"]


class SecretMissing(LatchworkError, LookupError):
    """This machine has no secret of this name."""


class Secrets:
    """The secrets of this machine. Thread-safe.

    Args:
        folder: A folder with a subfolder for each scope and a file for each secret. None: no files.
        environ: The environment variables. Default those of this process.
        providers: Functions to call if neither has the secret. Default those of installed packages.
    """

    def __init__(
        self,
        folder: Path | None = None,
        environ: Mapping[str, str] | None = None,
        providers: Iterable[Provider] | None = None,
    ) -> None:
        self._folder = folder
        self._environ = os.environ if environ is None else environ
        self._providers = None if providers is None else list(providers)

    def get(self, name: str, scope: str) -> str:
        """Return the value of a secret on this machine.

        Args:
            name: The name of the secret.
            scope: The requesting scope: a project, or ``CHANNELS``.
        Raises:
            SecretMissing: Neither the scope nor the shared secrets have it, or a provider fails. The message says where
                to put it.
        """
        check_secret(name)
        for each in (scope, SHARED):
            found = self._of_scope(name, each)
            if found is not None:
                return found
        variable = get_env_var_name(name, scope)
        ways = [f"set {variable} where it is started"] if variable else []
        ways += [f"put it into {self._folder / scope / name}"] if self._folder is not None else []
        flag = "--channels" if scope == CHANNELS else f"--project {scope}"
        whose = "the channels" if scope == CHANNELS else f"project {scope!r}"
        ways.append(f"run 'latchwork workflows secrets set {name} {flag}' on the machine of 'serve'")
        raise SecretMissing(f"this machine has no secret {name!r} of {whose}: {', or '.join(ways)}")

    def _of_scope(self, name: str, scope: str) -> str | None:
        variable = get_env_var_name(name, scope)
        found = self._environ.get(variable) if variable else None
        if found is None and self._folder is not None and check_scope(scope):
            found = _read(self._folder / scope / name)
        return self._provided(name, scope) if found is None else found

    def _provided(self, name: str, scope: str) -> str | None:
        if self._providers is None:
            self._providers = [each.load() for each in entry_points(group=GROUP)]
        for provider in self._providers:
            try:
                found = call_user(provider, name, scope)
            except Exception as error:
                raise SecretMissing(f"the secret provider failed for {name!r}: {reason(error)}") from error
            if found is not None:
                return str(found)
        return None


def get_env_var_name(name: str, scope: str) -> str:
    """Return the name of the environment variable that contains a secret.

    Return an empty string if a secret of another scope could have the same name. Such a secret is read from its file.

    Args:
        name: The name of the secret.
        scope: The project of the secret, or another scope.
    """
    shown = re.sub(r"[.-]", "_", name).upper()
    if scope in _VARIABLES:
        return _VARIABLES[scope] + shown
    if scope == _DEFAULT:
        return "" if _SEPARATOR in shown else VARIABLE + shown
    return f"{VARIABLE}{scope.upper()}{_SEPARATOR}{shown}" if _PLAIN.fullmatch(scope) else ""


def check_scope(scope: str) -> str:
    """Return the scope if it is well-formed.

    Raises:
        SecretMissing: It is not.
    """
    if scope not in _VARIABLES and _NAME.fullmatch(scope) is None:
        raise SecretMissing(f"{printable(scope[:100])!r} is not a valid project: use letters, digits, '_', '-' and '.'")
    return scope


def check_secret(name: str) -> str:
    """Return the name of a secret if it is well-formed.

    Raises:
        SecretMissing: It is not.
    """
    if _NAME.fullmatch(name) is None:
        raise SecretMissing(
            f"{printable(name[:100])!r} is not a valid name of a secret; use letters, digits, '_', '-' and '.'"
        )
    return name


def write_secret(folder: Path, name: str, value: str, scope: str) -> Path:
    """Write a secret to a file that only its owner can read, and return its path.

    Args:
        folder: The folder of the secrets.
        name: The name of the secret.
        value: The value.
        scope: A project, ``CHANNELS``, or the scope of shared secrets.
    Raises:
        SecretMissing: The name of the secret or of the scope is malformed.
        ValueError: The value is empty.
        OSError: The file cannot be written.
    """
    check_secret(name)
    if not value:
        raise ValueError(f"secret {name!r} would be empty; give it a value")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / check_scope(scope)).mkdir(exist_ok=True, mode=0o700)
    path = folder / scope / name
    replace_file(path, value.encode(), mode=0o600)
    return path


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise SecretMissing(f"secret {path.name!r} cannot be read from {path}: {reason(error)}") from error
