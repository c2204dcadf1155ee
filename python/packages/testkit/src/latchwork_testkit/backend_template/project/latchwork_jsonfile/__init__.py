"""A backend of latchwork that keeps its data in JSON files: ``jsonfile:///folder?root=app``.

Several processes of one machine can share the folder. Each root has a file, which every write replaces. This is a
template: small, correct and slow. This module is imported for every URL, so it imports no client library.
"""

from latchwork.spi import Capabilities, SchemeSpec

SPEC = SchemeSpec(
    schemes=("jsonfile",),
    capabilities=Capabilities(
        "jsonfile",
        multi_host=False,
        survives="crash",
        verifies_password=False,
        min_ttl_s=0.5,
        poll_interval_s=0.05,
    ),
    location="file",
)


def open_backend(url, clock):
    """Open the folder of the URL. Raises ConnectFailed or PermissionDenied."""
    from latchwork_jsonfile.backend import JsonFileBackend

    return JsonFileBackend(url, clock)
