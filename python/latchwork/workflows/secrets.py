"""Secrets by name, as the machine of a worker, or of a master, has them: in no database, no store, no spec, no log.

In this order: the variable ``LATCHWORK_SECRET_<NAME>``, a file of the secrets directory, what packages provide by the
entry point ``latchwork.workflow_secrets``: a function from a name to the value, or None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from latchwork.disks import replace_file
from latchwork.errors import LatchworkError
from latchwork.user_code import call_user
from latchwork.words import printable, reason

GROUP = "latchwork.workflow_secrets"
VARIABLE = "LATCHWORK_SECRET_"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
Provider = Callable[[str], "str | None"]


class SecretMissing(LatchworkError, LookupError):
    """This machine has no secret of this name."""


class Secrets:
    """What this machine can tell. Safe to share between threads.

    Args:
        folder: a file for each secret, named like it; None for none.
        environ: variables; those of this process by default.
        providers: asked when neither has it; those of installed packages by default.
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

    def get(self, name: str) -> str:
        """The value of a secret.

        Raises:
            SecretMissing: nobody has it, or a provider fails; the message says where to put it.
        """
        check_secret(name)
        found = self._environ.get(variable_of(name))
        if found is None and self._folder is not None:
            found = _read(self._folder / name)
        if found is None:
            found = self._provided(name)
        if found is None:
            where = f", put it into {self._folder / name}" if self._folder is not None else ""
            raise SecretMissing(
                f"this machine has no secret {name!r}: set {variable_of(name)} where it is started{where}, or run "
                f"'latchwork workflows secrets set {name}' beside 'serve'"
            )
        return found

    def _provided(self, name: str) -> str | None:
        if self._providers is None:
            self._providers = [each.load() for each in entry_points(group=GROUP)]
        for provider in self._providers:
            try:
                found = call_user(provider, name)
            except Exception as error:
                raise SecretMissing(f"what provides secrets failed for {name!r}: {reason(error)}") from error
            if found is not None:
                return str(found)
        return None


def variable_of(name: str) -> str:
    """The environment variable that may hold a secret."""
    return VARIABLE + re.sub(r"[.-]", "_", name).upper()


def check_secret(name: str) -> str:
    """The name itself, or ``SecretMissing``: no path of anybody's choice."""
    if _NAME.fullmatch(name) is None:
        raise SecretMissing(f"{printable(name[:100])!r} is no name of a secret; use letters, digits, '_', '-' and '.'")
    return name


def write_secret(folder: Path, name: str, value: str) -> Path:
    """Keep a secret in a folder, for nobody but us; where it is.

    Raises:
        SecretMissing: it is no name of a secret.
        ValueError: the value is empty.
        OSError: it cannot be written.
    """
    check_secret(name)
    if not value:
        raise ValueError(f"secret {name!r} would be empty; give it a value")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / name
    replace_file(path, value.encode(), mode=0o600)
    return path


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise SecretMissing(f"secret {path.name!r} cannot be read from {path}: {reason(error)}") from error
