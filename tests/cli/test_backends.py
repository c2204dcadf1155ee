"""`latchwork backends`, and what an open store says of itself."""

from __future__ import annotations

import os

import pytest

import latchwork
from latchwork.backends.schemes import find_spec


def test_each_installed_backend_shows_what_it_declares(cli):
    declared = {row["name"]: row for row in cli("backends", "--json").json["backends"]}
    assert declared.keys() == {"etcd", "memory", "postgresql", "sqlite", "zk"}
    assert declared["sqlite"]["poll_interval_s"] == 0
    assert declared["zk"]["max_ttl_s"] == 40
    assert declared["etcd"]["max_ttl_s"] is None
    table = cli("backends").out
    assert "processes of a machine" in table
    assert "pushed" in table


def test_a_backend_of_another_package_is_listed_and_a_broken_one_is_named(cli, tmp_path):
    (tmp_path / "addon_backend.py").write_text(
        "from latchwork.backends.capabilities import Capabilities\n"
        "from latchwork.backends.url import SchemeSpec\n"
        "SPEC = SchemeSpec(('addon',), Capabilities('addon', min_ttl_s=3.0))\n"
    )
    info = tmp_path / "addon-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: addon\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[latchwork.backends]\naddon = addon_backend\nbroken = not_there\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    shown = cli("backends", PYTHONPATH=path).out
    assert "3 s or more" in shown
    assert "broken://" in shown


def test_an_open_store_has_the_capabilities_of_its_scheme(store):
    declared = find_spec(store.url.partition("://")[0]).capabilities
    assert store.capabilities == declared


@pytest.mark.parametrize(("sync", "event"), [("normal", "crash"), ("full", "power loss")])
def test_a_file_survives_a_power_loss_only_with_full_syncs(tmp_path, sync, event):
    with latchwork.connect(f"sqlite:///{tmp_path}/store.db?sync={sync}") as store:
        assert store.capabilities.survives == event


def test_writes_that_are_confirmed_early_survive_a_restart_only(postgresql):
    with latchwork.connect(postgresql.url("early", synchronous_commit="off")) as store:
        assert store.capabilities.survives == "restart"
