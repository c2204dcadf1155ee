"""Versions of servers: what each is trusted with."""

from __future__ import annotations

import subprocess

import pytest

from latchwork import connect
from latchwork.backends import server_versions
from latchwork.backends.server_versions import etcd_may_lose_data, progress_follows_events, survives_canceled_reads
from latchwork_testkit.binaries import find_etcd


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
    assert (survives_canceled_reads(version), progress_follows_events(version)) == (survives, proves)


@pytest.mark.parametrize(
    ("version", "loses"),
    [
        ("3.3.27", True),
        ("3.4.20", True),
        ("3.4.21", False),
        ("3.4.23", False),
        ("3.5.0-rc.1", True),
        ("3.5.4", True),
        ("3.5.5", False),
        ("3.5.21", False),
        ("3.6.0", False),
        ("", False),
        ("unknown", False),
    ],
)
def test_version_tells_whether_confirmed_writes_may_be_lost(version, loses):
    assert etcd_may_lose_data(version) is loses


@pytest.mark.parametrize("series", ["3.4", "3.5"])
def test_process_is_warned_once_of_a_server_that_may_lose_data(request, caplog, monkeypatch, series):
    monkeypatch.setattr(server_versions, "_warned", set())
    server = request.getfixturevalue(f"etcd{series.replace('.', '')}")
    for _ in range(2):
        with connect(server.url("versions")) as store:
            store.put("k", b"v")
    told = [record.getMessage() for record in caplog.records if "upgrade to" in record.getMessage()]
    version = subprocess.run([find_etcd(series), "--version"], check=True, capture_output=True, text=True).stdout
    assert len(told) == etcd_may_lose_data(version.split()[2])
