"""Which versions of a server have a cure. Nothing here touches the network."""

from __future__ import annotations

#: Minor version to the first patch that has a cure; later minor versions have it, earlier ones do not.
Patches = dict[tuple[int, int], int]


def has(version: str, cured: Patches) -> bool:
    """Whether a server that says it is this version has the cure; one that does not tell is taken for an old one."""
    try:
        major, minor, patch = (int(part.partition("-")[0]) for part in version.split(".")[:3])
    except ValueError:
        return False
    return patch >= cured[major, minor] if (major, minor) in cured else (major, minor) > max(cured)
