"""What a server of a version can be trusted with. Nothing here touches the network.

Asked of the member that was connected to first; a server that does not tell its version is taken for an old one.
"""

from __future__ import annotations

from latchwork.backends.patches import Patches, has

_SURVIVES_CUT_READS: Patches = {(3, 4): 23, (3, 5): 7}
_PROGRESS_IS_PROOF: Patches = {(3, 4): 25, (3, 5): 8}
_KEEPS_DATA: Patches = {(3, 4): 21, (3, 5): 5}


def survives_cut_reads(version: str) -> bool:
    """Whether a transaction of reads may be cut off without harm; see ``reads.py``."""
    return has(version, _SURVIVES_CUT_READS)


def progress_is_proof(version: str) -> bool:
    """Whether a progress request is answered only when every watch of its stream has caught up; see ``watches.py``."""
    return has(version, _PROGRESS_IS_PROOF)


def may_lose_data(version: str) -> bool:
    """Whether confirmed writes may be lost when a server is killed, which no client can mend.

    Servers that stand alone may lose the last ones before 3.4.21 and 3.5.5, members of a cluster may end up with
    different data before 3.5.3. A server that does not tell its version is not blamed.
    """
    return version[:1].isdigit() and not has(version, _KEEPS_DATA)
