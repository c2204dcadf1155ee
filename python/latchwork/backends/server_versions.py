"""The versions of servers in which known defects are fixed."""

from __future__ import annotations

import logging

#: The first patch release with a fix, by minor version. Later minor versions have the fix, earlier ones do not.
Patches = dict[tuple[int, int], int]

_warned: set[tuple[str, ...]] = set()
#: Fixes of etcd; see the functions that use them.
_SURVIVES_CUT_READS: Patches = {(3, 4): 23, (3, 5): 7}
_PROGRESS_IS_PROOF: Patches = {(3, 4): 25, (3, 5): 8}
_ETCD_KEEPS_DATA: Patches = {(3, 4): 21, (3, 5): 5}
#: Fix of ZooKeeper: members that follow a new leader have all confirmed writes on disk.
_ZOOKEEPER_KEEPS_DATA: Patches = {(3, 8): 4, (3, 9): 2}
#: Versions with the fix that lose data by another defect: they send a log with a gap to other members.
_OTHER_DATA_LOSS = ("3.9.3",)
_VERSION, _MODE = "Zookeeper version: ", "Mode: "


def warn_once(log: logging.Logger, message: str, *what: str) -> None:
    """Log a warning about a server, but only once per process for the same ``what``.

    Args:
        log: The logger.
        message: The message, with a placeholder for each of ``what``.
        what: Identifies the warning, such as the version and the hosts of the server.
    """
    if (message, *what) not in _warned:
        _warned.add((message, *what))
        log.warning(message, *what)


def has_fix(version: str, fixed_in: Patches) -> bool:
    """Return whether a server of this version contains a fix. An unknown version is treated as one without it.

    Args:
        version: The version of the server.
        fixed_in: The first patch release with the fix, for each minor version.
    """
    try:
        major, minor, patch = (int(part.partition("-")[0]) for part in version.split(".")[:3])
    except ValueError:
        return False
    return patch >= fixed_in[major, minor] if (major, minor) in fixed_in else (major, minor) > max(fixed_in)


def survives_canceled_reads(version: str) -> bool:
    """Return whether an etcd server of this version keeps running after a client cancels a read-only transaction."""
    return has_fix(version, _SURVIVES_CUT_READS)


def progress_follows_events(version: str) -> bool:
    """Return whether an etcd server of this version sends all events of the stream before it answers a progress
    request.
    """
    return has_fix(version, _PROGRESS_IS_PROOF)


def etcd_may_lose_data(version: str) -> bool:
    """Return whether an etcd server of this version may lose confirmed writes when it is killed.

    No client can prevent that. Single servers may lose the last writes before 3.4.21 and 3.5.5. Members of a cluster
    may diverge before 3.5.3.

    Returns:
        False if the version is unknown.
    """
    return version[:1].isdigit() and not has_fix(version, _ETCD_KEEPS_DATA)


def parse_zookeeper_info(answer: str) -> tuple[str, bool]:
    """Parse a ZooKeeper server's answer to the command ``srvr``.

    Args:
        answer: The answer.

    Returns:
        The version, or "" if the answer has none, and whether the server is a member of an ensemble.
    """
    found = {name: line[len(name) :] for line in answer.splitlines() for name in (_VERSION, _MODE) if name in line[:20]}
    version = found.get(_VERSION, "").partition("-")[0].partition(",")[0].strip()
    return version, found.get(_MODE, "standalone").strip() != "standalone"


def zookeeper_may_lose_data(version: str) -> bool:
    """Return whether a ZooKeeper ensemble of this version may lose confirmed writes when its leader changes.

    Fixed in 3.8.4 and 3.9.2. 3.9.3 has another defect with the same effect.

    Returns:
        False if the version is unknown.
    """
    return version[:1].isdigit() and (version in _OTHER_DATA_LOSS or not has_fix(version, _ZOOKEEPER_KEEPS_DATA))
