"""Task groups: made, changed, told to the store by one master, and missed where nobody has made them."""

import pytest
import sqlalchemy as sa

from latchwork_workflows.db.tables import task_group
from latchwork_workflows.errors import UnknownWorkflow, WrongState
from latchwork_workflows.looking import BadRequest
from latchwork_workflows.maintenance import Doctor
from patience import eventually
from workflows.hands import a_workflow


def told(stage, name):
    entry = stage.store.get(stage.keys.group_size(name))
    return None if entry is None else int(entry.value)


@pytest.fixture
def flow(stage):
    return stage.apply(a_workflow(tasks={"a": {"task_group": "few"}, "b": ["a"]}))


def test_a_group_that_a_workflow_names_first_lets_one_task_run_at_a_time(stage, client, flow):
    assert [each._asdict() for each in client.groups()] == [
        {"name": "few", "size": 1, "used": 0, "waiting": 0, "workflows": ("default.flow",)}
    ]
    client.set_group("few", 4)
    client.apply({"name": "other", "tasks": [{"name": "a", "type": "noop", "task_group": "few"}]})
    assert [(each.size, each.workflows) for each in client.groups()] == [(4, ("default.flow", "default.other"))]


def test_the_store_is_told_of_sizes_by_the_master_also_of_those_that_go(stage, client, flow):
    with stage.master():
        eventually(lambda: told(stage, "few") == 1)
        client.set_group("few", 3)
        client.set_group("more", 2)
        eventually(lambda: (told(stage, "few"), told(stage, "more")) == (3, 2))
        client.remove_group("more")
        eventually(lambda: told(stage, "more") is None)
    client.set_group("few", 5)
    stage.store.put(stage.keys.group_size("strange"), b"7")
    assert told(stage, "few") == 3
    with stage.master():  # what nobody told while there was no master
        eventually(lambda: (told(stage, "few"), told(stage, "strange")) == (5, None))


def test_a_master_that_has_lost_the_shard_tells_the_store_nothing(stage, client, flow):
    run, give_up = stage.run_of()
    run._sizes._wanted = {"few": 9}
    give_up()
    with pytest.raises(Exception, match="has another owner"):
        run._sizes.tell()
    assert told(stage, "few") is None


def test_a_group_that_is_named_is_not_removed_and_one_that_is_not_there_neither(client, flow):
    with pytest.raises(WrongState, match=r"task group few is named by default.flow; apply these without it first"):
        client.remove_group("few")
    with pytest.raises(UnknownWorkflow, match="there is no task group 'nobody'"):
        client.remove_group("nobody")
    client.apply(a_workflow(tasks={"a": []}).definition)
    client.remove_group("few")
    assert client.groups() == []


@pytest.mark.parametrize(("name", "size"), [("few", 0), ("few", 10_001), ("a/b", 1), ("", 1)])
def test_a_size_or_a_name_that_is_none_is_refused(client, name, size):
    with pytest.raises(BadRequest):
        client.set_group(name, size)


def test_a_task_whose_group_is_gone_says_so_and_the_doctor_finds_it(stage, client, flow):
    with stage.master():
        made = stage.start(flow)
        eventually(stage.items)
        assert "has no worker" in client.why(made)["a"]
        with stage.database.write() as connection:
            connection.execute(sa.delete(task_group))
        stage.poke()
        eventually(lambda: told(stage, "few") is None)
        assert "the task group 'few', which is not there: make it with" in client.why(made)["a"]
        found = Doctor(stage.database, stage.store, wait=lambda _: None).look()
        of_group = [(each.kind, each.subject) for each in found if "few" in each.why or each.subject == "few"]
        assert of_group == [("no such task group", "few")]  # and not once more as what its workflow names
        client.set_group("few", 1)
        eventually(lambda: told(stage, "few") == 1)
        found = Doctor(stage.database, stage.store, wait=lambda _: None).look()
        assert not [each for each in found if "task group" in each.kind]


def test_the_doctor_finds_a_size_that_the_store_was_not_told(stage, client, flow):
    found = Doctor(stage.database, stage.store, wait=lambda _: None).look()
    assert [(each.subject, each.why) for each in found if each.kind == "size of a task group"] == [
        ("few", "size 1 in the database, none in the store")
    ]
