"""Servers that lose confirmed data by themselves are told from a store that does; others are excused nothing."""

from __future__ import annotations

import shutil

import pytest

import latchwork
from latchwork_testkit.servers import EtcdServer
from trials.history.run import Summary, repeated
from trials.witness import Witness, may_differ, may_forget


def write(server):
    with latchwork.connect(server.url("test")) as store:
        store.put("a", b"1")


@pytest.mark.parametrize(
    ("version", "forgets", "differs"),
    [
        ((3, 4, 20), True, False),
        ((3, 4, 23), False, False),
        ((3, 5, 1), True, True),
        ((3, 5, 4), True, False),
        ((3, 5, 5), False, False),
        ((3, 6, 0), False, False),
    ],
)
def test_only_versions_that_are_known_for_it_are_excused(version, forgets, differs):
    assert (may_forget(version), may_differ(version)) == (forgets, differs)


@pytest.mark.parametrize("rolled_back", [True, False])
def test_a_server_that_comes_back_with_an_older_revision_has_lost_what_it_confirmed(monkeypatch, tmp_path, rolled_back):
    monkeypatch.setattr("trials.witness.version_of", lambda _series: (3, 5, 1))
    with EtcdServer("3.4", data_dir=tmp_path / "data") as server:
        write(server)
        server.kill()
        shutil.copytree(tmp_path / "data", tmp_path / "older")
        server.start()
        write(server)
        witness = Witness(server)
        witness.before_a_kill()
        server.kill()
        if rolled_back:
            shutil.rmtree(tmp_path / "data")
            shutil.copytree(tmp_path / "older", tmp_path / "data")
        server.start()
        witness.after_the_restart()
    assert bool(witness.describe()) is rolled_back


def test_a_run_whose_servers_lost_data_is_given_again_and_a_good_one_is_not():
    runs = iter([Summary("etcd35", 1, spoilt="the server was at revision 9, and at 8"), Summary("etcd35", 2)])
    assert repeated(lambda: next(runs)).seed == 2
    assert list(runs) == []


def test_runs_that_are_spoilt_every_time_end():
    runs = iter([Summary("etcd35", seed, spoilt="lost") for seed in range(5)])
    assert repeated(lambda: next(runs)).spoilt == "lost"
    assert len(list(runs)) == 2
