"""The embedded store: a SQLite database on one machine, without a server.

``sqlite:///file.db`` is shared by all processes of the machine and remains when they end. ``memory://name`` is shared
by the stores of one process and ends with the last of them. Both run the same code.
"""

from __future__ import annotations

from latchwork.backends.base import Backend
from latchwork.backends.capabilities import Capabilities
from latchwork.backends.url import SchemeSpec, StoreURL, file_mode, one_of
from latchwork.clock import Clock

SPEC = SchemeSpec(
    schemes=("sqlite",),
    capabilities=Capabilities("sqlite", multi_host=False, survives="crash", verifies_password=False, min_ttl_s=0.25),
    options={"sync": one_of("normal", "full"), "file_mode": file_mode},
    location="file",
)
MEMORY = SchemeSpec(
    schemes=("memory",),
    capabilities=Capabilities(
        "memory",
        multi_process=False,
        multi_host=False,
        survives="nothing",
        verifies_password=False,
        min_ttl_s=0.25,
    ),
    location="name",
)
SPECS = (SPEC, MEMORY)


def open_backend(url: StoreURL, clock: Clock) -> Backend:
    """Open a database in a file or in the memory of this process. Create it if it does not exist.

    Raises:
        ConnectFailed: The directory of the file does not exist, or the file is damaged or not a database.
        PermissionDenied: The file or its directory is not writable.
    """
    from latchwork.backends.embedded.backend import EmbeddedBackend

    return EmbeddedBackend(url, clock)
