"""A process is warned once of an etcd that keeps all history, or whose database is large."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.backends import server_versions
from latchwork.backends.etcd import connection
from latchwork.backends.url import parse_url
from latchwork.cli.screens import doctor
from latchwork.jobs import JobManager
from latchwork_testkit.servers import EtcdServer
from patience import eventually


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(server_versions, "_warned", set())
    monkeypatch.setattr(connection, "_MANY_REVISIONS", 20)
    with EtcdServer("3.5") as started:
        yield started


def told(server, caplog):
    """Connect twice, and return what was warned of."""
    caplog.clear()
    for _ in range(2):
        latchwork.connect(server.url("history")).close()
    return [record.getMessage() for record in caplog.records if "may lose" not in record.getMessage()]


def write(server, count):
    with latchwork.connect(server.url("history")) as store:
        for number in range(count):
            store.put("key", b"%d" % number)


def test_a_history_that_was_never_compacted_is_warned_of_once(server, raw_client, caplog, monkeypatch):
    assert told(server, caplog) == []
    write(server, 30)
    (warning,) = told(server, caplog)
    assert "never compacted" in warning
    assert "--auto-compaction-retention" in warning
    monkeypatch.setattr(server_versions, "_warned", set())
    raw_client(server).compact()
    assert told(server, caplog) == []


def test_a_store_that_stays_open_learns_of_a_history_that_grew_meanwhile(server, monkeypatch):
    with latchwork.connect(server.url("history")) as store:
        assert store.server_notices == ()
        for number in range(30):
            store.put("key", b"%d" % number)
        assert store.server_notices == ()  # looked at an hour ago at most
        monkeypatch.setattr(connection, "_HISTORY_S", 0.0)
        eventually(lambda: ["never compacted" in each for each in store.server_notices] == [True])
        with latchwork.connect(server.url("history")) as other:
            assert "never compacted" in other.server_notices[0]


def test_the_health_of_a_job_node_names_a_history_that_was_never_compacted(server):
    write(server, 30)
    with JobManager(server.url("history"), "n1", []) as node:
        eventually(lambda: ["never compacted" in each for each in node.health().degraded] == [True])
        assert node.health().ok


def test_the_doctor_names_a_history_that_was_never_compacted(server, raw_client):
    def limits():
        return next(each for each in doctor._check_server(parse_url(server.url("history"))) if "limits" in each.check)

    assert limits().verdict == "ok"
    write(server, 30)
    assert limits().verdict == "warning"
    assert "--auto-compaction-retention" in limits().remedy
    raw_client(server).compact()
    assert limits().verdict == "ok"


def test_a_database_that_nears_its_quota_is_warned_of_once(server, caplog, monkeypatch):
    monkeypatch.setattr(connection, "_LARGE_BYTES", 10_000)
    (warning,) = told(server, caplog)
    assert "more than 1 GB" in warning
