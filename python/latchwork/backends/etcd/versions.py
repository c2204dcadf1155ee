"""What a server of a version can be trusted with. Nothing here touches the network.

Asked of the member that was connected to first; a server that does not tell its version is taken for an old one.
"""

from __future__ import annotations

_Patches = dict[tuple[int, int], int]
#: Minor version to the first patch that has a cure; later minor versions have it, earlier ones do not.
_SURVIVES_CUT_READS: _Patches = {(3, 4): 23, (3, 5): 7}
_PROGRESS_IS_PROOF: _Patches = {(3, 4): 25, (3, 5): 8}
_MEMBERS_STAY_ALIKE: _Patches = {(3, 4): 0, (3, 5): 3}


def survives_cut_reads(version: str) -> bool:
    """Whether a transaction of reads may be cut off without harm; see ``ranges.py``."""
    return _has(version, _SURVIVES_CUT_READS)


def progress_is_proof(version: str) -> bool:
    """Whether a progress request is answered only when every watch of its stream has caught up; see ``watches.py``."""
    return _has(version, _PROGRESS_IS_PROOF)


def members_may_differ(version: str) -> bool:
    """Whether the data of members may differ after one was killed while clients wrote, which no client can mend."""
    return version.startswith("3.5.") and not _has(version, _MEMBERS_STAY_ALIKE)


def _has(version: str, cured: _Patches) -> bool:
    try:
        major, minor, patch = (int(part.partition("-")[0]) for part in version.split(".")[:3])
    except ValueError:
        return False
    return patch >= cured[major, minor] if (major, minor) in cured else (major, minor) > max(cured)
