"""The schemes of connection URLs: their syntax, and the modules that open their backends.

Other packages add schemes through the entry point group ``latchwork.backends``. No client library is imported here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from latchwork.backends.capabilities import Capabilities
from latchwork.errors import BackendNotInstalled, InvalidURL

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINT_GROUP = "latchwork.backends"

#: Gets an option's text; raises ValueError saying what would be right ("must be normal or full").
Validator = Callable[[str], object]

_MODULES = {
    "memory": "latchwork.backends.embedded",
    "sqlite": "latchwork.backends.embedded",
    "zk": "latchwork.backends.zookeeper",
    "zookeeper": "latchwork.backends.zookeeper",
    "etcd": "latchwork.backends.etcd",
    "postgresql": "latchwork.backends.postgres",
    "postgres": "latchwork.backends.postgres",
}
#: Options that every scheme has, with their defaults.
DURATIONS = {"session_ttl_s": 10.0, "connect_timeout_s": 5.0, "call_timeout_s": 10.0}


@dataclass(frozen=True)
class SchemeSpec:
    """The syntax of a backend's URLs. It can be imported without the client library.

    Attributes:
        schemes: The canonical scheme, then its aliases.
        capabilities: The capabilities and limits of the backend, with the default options.
        default_port: The port that is used if a host has none. None means that a port is required.
        options: The options of this scheme, with their validators.
        location: What follows ``//``: hosts and a root, hosts and a database, a file path, or a name in this process.
        extra: The extra of latchwork that installs the client library. None if there is nothing to install.
    """

    schemes: tuple[str, ...]
    capabilities: Capabilities
    default_port: int | None = None
    options: Mapping[str, Validator] = field(default_factory=dict, hash=False)
    location: Literal["hosts", "database", "file", "name"] = "hosts"
    extra: str | None = None

    def known_options(self) -> list[str]:
        """Return the names of all options that URLs with this scheme may have, sorted."""
        place = {"hosts": ["password_file"], "database": ["password_file", "root"], "file": ["root"], "name": []}[
            self.location
        ]
        return sorted([*self.options, *DURATIONS, *place])


def entry_points(*, group: str) -> EntryPoints:
    """Call ``importlib.metadata.entry_points``, which is imported only now because the import is slow."""
    from importlib.metadata import entry_points as installed

    return installed(group=group)


def known_schemes() -> list[str]:
    """Return all known URL schemes, sorted. Aliases and the schemes of other packages are included."""
    return sorted({*_MODULES, *(found.name for found in entry_points(group=ENTRY_POINT_GROUP))})


def find_spec(scheme: str) -> SchemeSpec:
    """Return the ``SchemeSpec`` of a URL scheme or alias.

    Raises:
        InvalidURL: The scheme is unknown.
        BackendNotInstalled: The package that added the scheme cannot be imported.
    """
    module = load_backend_module(scheme.lower())
    specs: tuple[SchemeSpec, ...] = getattr(module, "SPECS", None) or (module.SPEC,)
    return next((spec for spec in specs if scheme.lower() in spec.schemes), specs[0])


def one_of(*allowed: str) -> Validator:
    """Return a validator that accepts only these option values."""

    def check(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be {' or '.join(allowed)}")
        return text

    return check


def readable_file(text: str) -> Path:
    """Validate an option value that must be the path of an existing file. Return the path.

    Raises:
        ValueError: There is no file at this path.
    """
    path = Path(text)
    try:
        is_file = path.is_file()
    except OSError:  # a name that is longer than any file's
        is_file = False
    if not is_file:
        raise ValueError("must name an existing file")
    return path


def file_mode(text: str) -> str:
    """Validate an option value that must be file permissions in octal digits. Return them without leading zeros.

    Raises:
        ValueError: The owner could not read and write the file, or it would be executable.
    """
    try:
        mode = int(text, 8)
    except ValueError:
        mode = 0
    if mode & ~0o666 or mode & 0o600 != 0o600:
        raise ValueError("must be a mode in octal digits between 600 and 666, such as 660")
    return f"{mode:o}"


def load_backend_module(scheme: str) -> Any:
    """Return the module that opens the backends of a scheme. Raises the same errors as ``find_spec``."""
    if scheme in _MODULES:
        return importlib.import_module(_MODULES[scheme])
    added = next((each for each in entry_points(group=ENTRY_POINT_GROUP) if each.name == scheme), None)
    if added is None:
        raise InvalidURL(f"unknown scheme {scheme!r}; known schemes are {', '.join(known_schemes())}")
    try:
        return added.load()
    except ImportError as error:
        raise not_installed_error(scheme, None, error) from error


def not_installed_error(scheme: str, extra: str | None, error: ImportError) -> BackendNotInstalled:
    """Return the error for a scheme whose module or client library cannot be imported.

    Args:
        scheme: The scheme.
        extra: The extra of latchwork that installs the library, or None.
        error: The error of the import.
    """
    remedy = f'run: pip install "latchwork[{extra}]"' if extra else "reinstall the package that provides it"
    return BackendNotInstalled(f"{scheme}:// needs a library that cannot be imported ({error}); {remedy}")


def installed_specs() -> dict[str, SchemeSpec | str]:
    """Return the ``SchemeSpec`` of every known backend, by its main scheme.

    If the package that adds a backend cannot be imported, the value is the reason as text.
    """
    found: dict[str, SchemeSpec | str] = {}
    for scheme in known_schemes():
        try:
            spec = find_spec(scheme)
        except BackendNotInstalled as error:
            found[scheme] = str(error)
        else:
            found[spec.schemes[0]] = spec
    return found
