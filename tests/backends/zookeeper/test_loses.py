"""Ensembles that may lose confirmed writes: who connects to one is warned."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from latchwork import connect
from latchwork.backends import server_versions
from latchwork.backends.server_versions import parse_zookeeper_info, zookeeper_may_lose_data
from latchwork.backends.zookeeper.kazoo_connection import KazooConnection
from latchwork_testkit.binaries import ServerMissing, find_zookeeper_classpath
from latchwork_testkit.servers import ZooKeeperEnsemble, ZooKeeperServer

SRVR = "Zookeeper version: {}-5d9d4e9b0c14, built on 2022-02-25 08:49 UTC\nLatency min/avg/max: 0/0.0/0\nMode: {}\n"


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "may lose confirmed writes" in record.getMessage()]


@pytest.mark.parametrize(
    ("version", "loses"),
    [
        ("3.6.3", True),
        ("3.7.2", True),
        ("3.8.0", True),
        ("3.8.3", True),
        ("3.8.4", False),
        ("3.9.1", True),
        ("3.9.2", False),
        ("3.9.3", True),
        ("3.9.4", False),
        ("3.10.0", False),
        ("4.0.0", False),
        ("", False),
        ("unknown", False),
    ],
)
def test_version_tells_whether_confirmed_writes_may_be_lost(version, loses):
    assert zookeeper_may_lose_data(version) is loses


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (SRVR.format("3.8.0", "follower"), ("3.8.0", True)),
        (SRVR.format("3.8.0", "leader"), ("3.8.0", True)),
        (SRVR.format("3.8.0", "standalone"), ("3.8.0", False)),
        ("Zookeeper version: 3.9.4, built on today\nMode: observer\n", ("3.9.4", True)),
        ("srvr is not executed because it is not in the whitelist.\n", ("", False)),
        ("This ZooKeeper instance is not currently serving requests\n", ("", False)),
        ("", ("", False)),
        ("\x00\xff\nMode: ", ("", True)),
    ],
    ids=repr,
)
def test_a_server_tells_its_version_and_whether_it_has_a_leader(answer, told):
    assert parse_zookeeper_info(answer) == told


def test_who_connects_to_an_ensemble_that_may_lose_data_is_warned_once(caplog, monkeypatch):
    monkeypatch.setattr(server_versions, "_warned", set())
    with ZooKeeperEnsemble() as ensemble, connect(ensemble.url("versions")) as store:
        store.put("k", b"v")
        version, has_leader = parse_zookeeper_info(ensemble.members[0].send_four_letter_word("srvr"))
    assert has_leader
    told = warnings_of(caplog)
    assert len(told) == zookeeper_may_lose_data(version)
    assert all(f"ZooKeeper {version} at " in each and "3.9.4" in each for each in told)


def test_nobody_is_warned_of_a_server_without_a_leader_to_change(caplog, zookeeper):
    with connect(zookeeper.url("versions")) as store:
        store.put("k", b"v")
    assert warnings_of(caplog) == []


def test_nobody_is_warned_of_a_current_ensemble(caplog):
    try:
        find_zookeeper_classpath("3.9")
    except ServerMissing as error:
        pytest.skip(str(error))
    with ZooKeeperEnsemble(version="3.9") as ensemble, connect(ensemble.url("versions")) as store:
        store.put("k", b"v")
        assert parse_zookeeper_info(ensemble.members[0].send_four_letter_word("srvr"))[0].startswith("3.9.")
    assert warnings_of(caplog) == []


def test_a_server_that_may_not_tell_its_version_is_connected_to_all_the_same(caplog):
    silent = {"4lw.commands.whitelist": "ruok"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ZooKeeperServer, "_is_ready", lambda self: self.send_four_letter_word("ruok") == "imok")
        with ZooKeeperServer(extra_config=silent) as server, connect(server.url("versions")) as store:
            store.put("k", b"v")
    assert warnings_of(caplog) == []


def test_nobody_waits_for_a_server_that_does_not_answer_the_question(zookeeper, monkeypatch):
    asked, asks_no_more = threading.Event(), threading.Event()

    def silent(link, _word, _within_s):
        asked.set()
        asks_no_more.wait(10)
        return ""

    monkeypatch.setattr(KazooConnection, "ask_server", silent)
    with connect(zookeeper.url("versions")) as store:
        store.put("k", b"v")
        assert asked.wait(5)
        assert not asks_no_more.is_set()
        asks_no_more.set()


def test_a_question_that_is_not_answered_is_over_in_time(zookeeper):
    with connect(zookeeper.url("versions")) as store, socket.create_server(("127.0.0.1", 0)) as mute:
        link = store._core.backend._main._kazoo
        link.loop.server = mute.getsockname()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(link.ask_server, b"srvr", 0.2).result(5) == ""
