"""Workflows that would start themselves by others: refused when the one is written that closes the ring."""

import threading
from contextlib import suppress

import pytest

from latchwork_workflows.db import definitions
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.maintenance import export_document, import_document
from workflows.hands import a_workflow, client_of, stage_in_memory


@pytest.fixture
def stage(database_url):
    with stage_in_memory(database_url) as made:
        yield made


on_file = pytest.mark.parametrize("database_url", [pytest.param("sqlite", id="file")], indirect=True)


def starts(*others):
    return {f"t{n}": {"type": "sub_process", "params": {"workflow": each}} for n, each in enumerate(others)}


def plain(name, *others, **fields):
    return a_workflow(name, tasks=starts(*others) or {"a": []}, **fields).definition.model_dump(mode="json")


def test_the_second_of_two_that_start_each_other_is_refused_with_the_way(stage, client):
    client.workflows.apply(plain("a", "b"))
    with pytest.raises(DefinitionInvalid) as refused:
        client.workflows.apply(plain("b", "x", "a"))
    ((path, why),) = refused.value.problems
    assert path == "tasks[1].params.workflow"
    assert "endlessly: default.b -> default.a -> default.b" in why
    client.workflows.apply(plain("b", "x"))
    client.workflows.apply(plain("a"))
    client.workflows.apply(plain("b", "a"))


@on_file
def test_a_ring_is_found_through_others_through_dots_in_names_and_in_other_projects(client):
    client.grants.set("etl", "default", "operator")
    client.grants.set("default", "etl", "operator")
    client.workflows.apply(plain("first.step", "etl.second"))
    client.workflows.apply(plain("second", "third", project="etl"))
    with pytest.raises(DefinitionInvalid, match=r"third -> default.first.step -> etl.second -> default.third"):
        client.workflows.apply(plain("third", "first.step"))


@on_file
def test_a_workflow_of_the_same_name_in_another_project_closes_no_ring(client):
    client.grants.set("etl", "default", "operator")
    client.workflows.apply(plain("a", "etl.b"))
    client.workflows.apply(plain("b", "a"))
    client.workflows.apply(plain("b", project="etl"))


def test_of_two_that_are_written_at_once_and_start_each_other_one_is_refused(stage, monkeypatch):
    """Neither is there when the other looks, unless one of them waits."""
    both, write = threading.Barrier(2), definitions.save_definition

    def slowly(*args, **kwargs):
        with suppress(threading.BrokenBarrierError):
            both.wait(1.0)  # both have looked for rings: the race is lost
        return write(*args, **kwargs)

    monkeypatch.setattr(definitions, "save_definition", slowly)
    ends = []

    def work(name, other):
        with client_of(stage.database, stage.store) as client:
            try:
                ends.append(client.workflows.apply(plain(name, other)).version)
            except DefinitionInvalid as error:
                ends.append(str(error))

    threads = [threading.Thread(target=work, args=each, name="writer") for each in (("a", "b"), ("b", "a"))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(isinstance(each, int) for each in ends) == [False, True], ends
    assert any("would start itself" in str(each) for each in ends)


@on_file
def test_a_document_with_a_ring_is_refused_whole(stage, client):
    client.workflows.apply(plain("a", "b"))
    document = export_document(stage.database)
    ring = {"definition": plain("b", "a"), "online": True, "scheduled": True}
    for dry_run in (True, False):
        with pytest.raises(DefinitionInvalid, match=r"workflows\[1\].definition.tasks\[0\].params.workflow: it would"):
            import_document(
                stage.database, {**document, "workflows": [*document["workflows"], ring]}, by="eve", dry_run=dry_run
            )
    assert export_document(stage.database) == document
