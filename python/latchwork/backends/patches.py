"""Which versions of a server have a cure. Nothing here touches the network."""

from __future__ import annotations

import logging

#: Minor version to the first patch that has a cure; later minor versions have it, earlier ones do not.
Patches = dict[tuple[int, int], int]

_warned: set[tuple[str, str]] = set()


def warn_once(log: logging.Logger, message: str, version: str, hosts: str) -> None:
    """Log a warning about the version of a server, unless this process has logged it for this server and version."""
    if (version, hosts) not in _warned:
        _warned.add((version, hosts))
        log.warning(message, version, hosts)


def has(version: str, cured: Patches) -> bool:
    """Whether a server that says it is this version has the cure; one that does not tell is taken for an old one."""
    try:
        major, minor, patch = (int(part.partition("-")[0]) for part in version.split(".")[:3])
    except ValueError:
        return False
    return patch >= cured[major, minor] if (major, minor) in cured else (major, minor) > max(cured)
