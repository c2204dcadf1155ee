"""What a ZooKeeper server is trusted with, by its answer to `srvr`. Nothing here touches the network."""

from __future__ import annotations

from latchwork.backends.patches import Patches, has

#: Members that follow a new leader have what they confirm on disk.
_KEEPS_DATA: Patches = {(3, 8): 4, (3, 9): 2}
#: Hands on a log with a hole in it, by another fault.
_LOSES_ALL_THE_SAME = ("3.9.3",)
_VERSION, _MODE = "Zookeeper version: ", "Mode: "


def told_by(answer: str) -> tuple[str, bool]:
    """Version of a server, and whether it is a member of an ensemble; ("", False) from one that does not tell."""
    found = {name: line[len(name) :] for line in answer.splitlines() for name in (_VERSION, _MODE) if name in line[:20]}
    version = found.get(_VERSION, "").partition("-")[0].partition(",")[0].strip()
    return version, found.get(_MODE, "standalone").strip() != "standalone"


def may_lose_data(version: str) -> bool:
    """Whether an ensemble may lose confirmed writes when its leader changes, which no client can mend.

    Cured in 3.8.4 and 3.9.2; 3.9.3 has another fault that does the same. A server that does not tell its version is
    not blamed.
    """
    return version[:1].isdigit() and (version in _LOSES_ALL_THE_SAME or not has(version, _KEEPS_DATA))
