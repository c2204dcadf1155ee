"""Log of a master whose database or store is away or full: one warning per trouble, and one message at its end."""

import collections
import contextlib
import logging
import time
import uuid

import pytest

import latchwork
from disks import mounted
from latchwork.errors import QuotaExceeded
from latchwork_testkit.servers import EtcdServer
from latchwork_workflows.db import database as of_database
from latchwork_workflows.installation import initialize
from latchwork_workflows.master import Master
from patience import eventually
from trials.fault import full, locked
from workflows.hands import Stage, a_workflow

SHARDS = 4
#: Seconds for which the database or the store is away.
AWAY_S = 4.0


@contextlib.contextmanager
def running_master(folder, store):
    """Run a master of some shards. Each has a running task; the second value are their claims."""
    stage = Stage(f"sqlite:///{folder}/flows.db", store)
    initialize(stage.database, shards=SHARDS)
    hand = stage.hand()
    with Master(
        stage.database, store, node_id="m1", lock_ttl_s=15.0, poll_s=1.0, alerts_every_s=0.5, chores_every_s=1.0
    ):
        start_runs(stage)
        yield stage, hand, take_of_each_shard(hand)
    stage.close()


def take_of_each_shard(hand):
    """Wait for a task of each shard, and return their claims."""
    claims = {}
    eventually(lambda: claims.update(hand.take_all()) or len(claims) == SHARDS, 30.0)
    return list(claims.values())


def start_runs(stage):
    version = stage.apply(a_workflow())
    for shard in range(SHARDS):
        with contextlib.suppress(QuotaExceeded):  # the command is stored, and the master polls for it
            stage.send("start", on=shard, code=version.code, version=version.number)


def wait_for_recovery(hand, caplog):
    """Wait until each shard has put another task, and until the master has logged that its shards work again."""
    take_of_each_shard(hand)
    eventually(lambda: "all shards of master m1 work again" in caplog.text)


def assert_one_warning_and_one_message(caplog):
    """Check that each loop of the master has logged one warning, all shards together one, and one message."""
    names = ("latchwork_workflows.", "latchwork.events")
    found = (each for each in caplog.records if each.levelno >= logging.WARNING and each.name.startswith(names))
    counts = collections.Counter(each.msg for each in found)
    assert set(counts.values()) == {1}, counts
    assert sum(text.startswith("shard %d") for text in counts) == 1, counts
    assert caplog.text.count("all shards of master m1 work again") == 1


@pytest.fixture
def memory():
    with latchwork.connect(f"memory://{uuid.uuid4().hex}") as store:
        yield store


def test_a_locked_database_is_one_warning(tmp_path, memory, monkeypatch, caplog):
    monkeypatch.setattr(of_database, "_BUSY_S", 0.3)
    caplog.set_level(logging.INFO)
    with running_master(tmp_path, memory) as (_stage, hand, claims):
        with locked(tmp_path / "flows.db"):
            for claim in claims:
                hand.end(claim)
            time.sleep(AWAY_S)
        wait_for_recovery(hand, caplog)
        eventually(lambda: "old data is deleted again" in caplog.text)
    assert_one_warning_and_one_message(caplog)


def test_a_database_on_a_full_disk_is_one_warning(tmp_path, memory, caplog):
    caplog.set_level(logging.INFO)
    with mounted(tmp_path, 12, "--lazy") as disk, running_master(disk, memory) as (_stage, hand, claims):
        with full(disk):
            for claim in claims:
                hand.end(claim, outputs={"rows": "x" * 30_000})
            time.sleep(AWAY_S)
        wait_for_recovery(hand, caplog)
    assert_one_warning_and_one_message(caplog)


def test_a_store_on_a_full_disk_is_one_warning(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with (
        mounted(tmp_path, 12, "--lazy") as disk,
        latchwork.connect(f"sqlite:///{disk}/store.db") as store,
        running_master(tmp_path, store) as (stage, hand, _claims),
    ):
        with full(disk):
            start_runs(stage)
            time.sleep(AWAY_S)
        wait_for_recovery(hand, caplog)
    assert_one_warning_and_one_message(caplog)


def test_a_stopped_etcd_is_one_warning(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with (
        EtcdServer("3.5") as server,
        latchwork.connect(server.url("app", call_timeout_s=1)) as store,
        running_master(tmp_path, store) as (_stage, hand, claims),
    ):
        for claim in claims:
            hand.end(claim)
        server.kill()
        time.sleep(AWAY_S)
        server.start()
        wait_for_recovery(hand, caplog)
    assert_one_warning_and_one_message(caplog)
