"""Versions of servers: what each is trusted with, without a server."""

from __future__ import annotations

import pytest

from latchwork.backends.etcd.versions import progress_is_proof, survives_cut_reads


@pytest.mark.parametrize(
    ("version", "survives", "proves"),
    [
        ("3.3.27", False, False),
        ("3.4.22", False, False),
        ("3.4.23", True, False),
        ("3.4.24", True, False),
        ("3.4.25", True, True),
        ("3.5.0-rc.1", False, False),
        ("3.5.6", False, False),
        ("3.5.7", True, False),
        ("3.5.8", True, True),
        ("3.6.0-alpha.0", True, True),
        ("3.10.1", True, True),
        ("4.0.0", True, True),
        ("", False, False),
        ("3.6", False, False),
        ("unknown", False, False),
    ],
)
def test_version_tells_what_a_server_can_be_trusted_with(version, survives, proves):
    assert (survives_cut_reads(version), progress_is_proof(version)) == (survives, proves)
