"""Pools: created, changed, copied to the store by one master, and reported where they are missing."""

import pytest
import sqlalchemy as sa

from latchwork_workflows.db.tables import pool
from latchwork_workflows.errors import BadRequest, NotFound, WrongState
from latchwork_workflows.maintenance import Doctor
from patience import eventually
from workflows.hands import a_workflow


def stored(stage, name):
    entry = stage.store.get(stage.keys.pool_size_key(name))
    return None if entry is None else int(entry.value)


@pytest.fixture
def flow(stage):
    return stage.apply(a_workflow(tasks={"a": {"pool": "few"}, "b": ["a"]}))


def test_a_pool_that_a_workflow_names_first_lets_one_task_run_at_a_time(stage, client, flow):
    assert [each.model_dump() for each in client.pools.list()] == [
        {
            "name": "few",
            "size": 1,
            "admission": "suspend",
            "used": 0,
            "waiting": 0,
            "active": None,
            "workflows": ["default.flow"],
        }
    ]
    client.pools.set("few", 4)
    client.workflows.apply({"name": "other", "tasks": [{"name": "a", "type": "noop", "pool": "few"}]})
    assert [(each.size, each.workflows) for each in client.pools.list()] == [(4, ["default.flow", "default.other"])]


def test_the_master_copies_sizes_to_the_store_and_deletes_removed_pools(stage, client, flow):
    with stage.master():
        eventually(lambda: stored(stage, "few") == 1)
        client.pools.set("few", 3)
        client.pools.set("more", 2)
        eventually(lambda: (stored(stage, "few"), stored(stage, "more")) == (3, 2))
        client.pools.remove("more")
        eventually(lambda: stored(stage, "more") is None)
    client.pools.set("few", 5)
    stage.store.put(stage.keys.pool_size_key("strange"), b"7")
    assert stored(stage, "few") == 3
    with stage.master():  # what changed while there was no master
        eventually(lambda: (stored(stage, "few"), stored(stage, "strange")) == (5, None))


def test_a_master_that_has_lost_the_shard_writes_no_sizes(stage, client, flow):
    run, give_up = stage.run_of()
    run._pools._wanted = {"few": 9}
    give_up()
    with pytest.raises(Exception, match="has another owner"):
        run._pools.write_to_store()
    assert stored(stage, "few") is None


def test_a_pool_that_a_workflow_names_is_not_removed(client, flow):
    with pytest.raises(WrongState, match=r"pool few is named by default.flow; apply these without it first"):
        client.pools.remove("few")
    with pytest.raises(NotFound, match="there is no pool 'nobody'"):
        client.pools.remove("nobody")
    client.workflows.apply(a_workflow(tasks={"a": []}).definition)
    client.pools.remove("few")
    assert client.pools.list() == []


@pytest.mark.parametrize(("name", "size"), [("few", 0), ("few", 10_001), ("a/b", 1), ("", 1)])
def test_an_invalid_size_or_name_is_refused(client, name, size):
    with pytest.raises(BadRequest):
        client.pools.set(name, size)


def test_a_task_of_a_removed_pool_says_so_and_the_doctor_finds_it(stage, client, flow):
    with stage.master():
        made = stage.start(flow)
        eventually(stage.items)
        assert "has no worker" in client.runs.explain(made).tasks["a"]
        with stage.database.write() as connection:
            connection.execute(sa.delete(pool))
        stage.poke()
        eventually(lambda: stored(stage, "few") is None)
        assert "the pool 'few', which does not exist: create it with" in client.runs.explain(made).tasks["a"]
        found = Doctor(stage.database, stage.store, wait=lambda _: None).check()
        of_pool = [(each.kind, each.subject) for each in found if "few" in each.why or each.subject == "few"]
        assert of_pool == [("missing pool", "few")]
        client.pools.set("few", 1)
        eventually(lambda: stored(stage, "few") == 1)
        found = Doctor(stage.database, stage.store, wait=lambda _: None).check()
        assert not [each for each in found if "pool" in each.kind]


def test_the_doctor_finds_a_size_that_the_store_was_not_stored(stage, client, flow):
    found = Doctor(stage.database, stage.store, wait=lambda _: None).check()
    assert [(each.subject, each.why) for each in found if each.kind == "size of a pool"] == [
        ("few", "size 1 in the database, none in the store")
    ]
