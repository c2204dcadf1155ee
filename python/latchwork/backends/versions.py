"""What a server of a version can be trusted with: which versions have a cure. Nothing here touches the network."""

from __future__ import annotations

import logging

#: Minor version to the first patch that has a cure; later minor versions have it, earlier ones do not.
Patches = dict[tuple[int, int], int]

_warned: set[tuple[str, str]] = set()
#: Of etcd.
_SURVIVES_CUT_READS: Patches = {(3, 4): 23, (3, 5): 7}
_PROGRESS_IS_PROOF: Patches = {(3, 4): 25, (3, 5): 8}
_ETCD_KEEPS_DATA: Patches = {(3, 4): 21, (3, 5): 5}
#: Of ZooKeeper: members that follow a new leader have what they confirm on disk.
_ZOOKEEPER_KEEPS_DATA: Patches = {(3, 8): 4, (3, 9): 2}
#: Hands on a log with a hole in it, by another fault.
_LOSES_ALL_THE_SAME = ("3.9.3",)
_VERSION, _MODE = "Zookeeper version: ", "Mode: "


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


def survives_cut_reads(version: str) -> bool:
    """Whether a transaction of reads may be cut off without harm; see ``reads.py``."""
    return has(version, _SURVIVES_CUT_READS)


def progress_is_proof(version: str) -> bool:
    """Whether a progress request is answered only when every watch of its stream has caught up; see ``watches.py``."""
    return has(version, _PROGRESS_IS_PROOF)


def etcd_may_lose_data(version: str) -> bool:
    """Whether confirmed writes may be lost when a server is killed, which no client can mend.

    Servers that stand alone may lose the last ones before 3.4.21 and 3.5.5, members of a cluster may end up with
    different data before 3.5.3. A server that does not tell its version is not blamed.
    """
    return version[:1].isdigit() and not has(version, _ETCD_KEEPS_DATA)


def told_by(answer: str) -> tuple[str, bool]:
    """Version of a server, and whether it is a member of an ensemble; ("", False) from one that does not tell."""
    found = {name: line[len(name) :] for line in answer.splitlines() for name in (_VERSION, _MODE) if name in line[:20]}
    version = found.get(_VERSION, "").partition("-")[0].partition(",")[0].strip()
    return version, found.get(_MODE, "standalone").strip() != "standalone"


def zookeeper_may_lose_data(version: str) -> bool:
    """Whether an ensemble may lose confirmed writes when its leader changes, which no client can mend.

    Cured in 3.8.4 and 3.9.2; 3.9.3 has another fault that does the same. A server that does not tell its version is
    not blamed.
    """
    return version[:1].isdigit() and (version in _LOSES_ALL_THE_SAME or not has(version, _ZOOKEEPER_KEEPS_DATA))
