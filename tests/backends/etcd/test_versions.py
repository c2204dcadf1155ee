"""Versions of servers: what each is trusted with."""

from __future__ import annotations

import subprocess

import pytest

from latchwork import connect
from latchwork.backends.etcd.versions import members_may_differ, progress_is_proof, survives_cut_reads
from latchwork.testing._binaries import find_etcd


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


@pytest.mark.parametrize(
    ("version", "differ"),
    [
        ("3.4.23", False),
        ("3.5.0-rc.1", True),
        ("3.5.2", True),
        ("3.5.3", False),
        ("3.5.21", False),
        ("3.6.0", False),
        ("", False),
    ],
)
def test_version_tells_whether_members_may_end_up_with_different_data(version, differ):
    assert members_may_differ(version) is differ


@pytest.mark.parametrize("series", ["3.4", "3.5"])
def test_who_connects_to_a_server_whose_members_may_differ_is_warned_once(request, caplog, series):
    server = request.getfixturevalue(f"etcd{series.replace('.', '')}")
    with connect(server.url("versions")) as store:
        store.put("k", b"v")
    told = [record.getMessage() for record in caplog.records if "upgrade to" in record.getMessage()]
    version = subprocess.run([find_etcd(series), "--version"], check=True, capture_output=True, text=True).stdout
    assert len(told) == members_may_differ(version.split()[2])
