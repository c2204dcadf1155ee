"""What people wrote is one document, which another database takes whole or not at all."""

import pytest
import sqlalchemy as sa

from latchwork_workflows.db import Database, definitions, tables, workflow_queries
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.installation import initialize
from latchwork_workflows.maintenance import export_document, find_missing_bundles, import_document
from latchwork_workflows.model.yaml_format import format_as_yaml, parse_yaml
from latchwork_workflows.web import Role
from workflows.hands import a_workflow


@pytest.fixture
def other(tmp_path):
    made = Database(f"sqlite:///{tmp_path}/other.db")
    initialize(made, shards=2)
    yield made
    made.close()


@pytest.fixture
def full(database_url):
    made = Database(database_url)
    initialize(made, shards=2)
    with made.write() as connection:
        schedule = {"cron": "0 3 * * *", "tz": "Europe/Berlin"}
        found = definitions.save_definition(connection, a_workflow("nightly", schedule=schedule), shards=2)
        definitions.save_definition(connection, a_workflow("off", project="billing"), shards=2, online=False)
        connection.execute(sa.update(tables.schedule).where(tables.schedule.c.code == found.code).values(enabled=False))
        connection.execute(sa.insert(tables.parameter).values(project="", name="bucket", value={"a": [1, None]}))
        connection.execute(sa.insert(tables.environment).values(project="", name="test", variables={"X": "on"}))
        shop = {"url": "postgresql://etl@db/shop", "secret": "shop"}
        connection.execute(sa.insert(tables.connection).values(project="billing", name="shop", **shop))
        connection.execute(sa.insert(tables.pool).values(name="db", size=3, admission="suspend"))
        connection.execute(sa.insert(tables.pool).values(name="@billing", size=5, admission="fail"))
    accounts = DatabaseAccounts(made)
    accounts.create_account("eve", "a long password", by="test")
    accounts.set_role("eve", "billing", Role.EDITOR, by="test")
    yield made
    made.close()


def changes(found):
    return {(each.kind, each.name): (each.what, *each.fields) for each in found}


def test_what_is_exported_is_imported_and_then_the_same(full, other):
    document = export_document(full)
    found = import_document(other, parse_yaml(format_as_yaml({**document, "exported_at": "now"})), by="test")
    assert {each.what for each in found} == {"new"}
    assert export_document(other) == document
    assert {each.what for each in import_document(other, document, by="test")} == {"same"}
    assert "a long password" not in str(document)
    assert "scrypt" not in str(document)
    with other.read() as connection:
        (row,) = [each for each in workflow_queries.list_workflows(connection) if each.name == "nightly"]
        assert (row.online, row.scheduled) == (True, False)
        kinds = connection.execute(sa.select(tables.event.c.kind)).scalars().all()
    assert kinds == ["import"]
    (eve,) = DatabaseAccounts(other).list_accounts()
    assert (eve.has_password, eve.roles) == (False, {"billing": "editor"})


def test_what_differs_is_named_and_a_dry_run_changes_nothing(full, other):
    document = export_document(full)
    import_document(other, document, by="test")
    document["pools"][1]["size"] = 4
    document["accounts"][0]["roles"] = {"": "viewer"}
    document["workflows"][1]["definition"]["timeout_s"] = 60.0
    document["workflows"][0]["online"] = True
    before = export_document(other)
    found = changes(import_document(other, document, by="test", dry_run=True))
    assert found == {
        ("workflow", "billing.off"): ("changed", "online"),
        ("workflow", "default.nightly"): ("changed", "timeout_s"),
        ("parameter", "bucket"): ("same",),
        ("environment", "test"): ("same",),
        ("connection", "billing/shop"): ("same",),
        ("pool", "db"): ("changed", "size"),
        ("pool", "@billing"): ("same",),
        ("account", "eve"): ("changed", "roles"),
    }
    assert export_document(other) == before
    assert changes(import_document(other, document, by="test")) == found
    assert export_document(other) == document


def test_what_a_document_does_not_name_stays(full):
    before = export_document(full)
    import_document(full, {"latchwork_workflows": 1, "pools": [{"name": "new", "size": 1}]}, by="test")
    after = export_document(full)
    assert [each["name"] for each in after.pop("pools")] == ["@billing", "db", "new"]
    assert after == {name: each for name, each in before.items() if name != "pools"}


def test_an_import_keeps_the_password_of_who_is_there(full):
    document = export_document(full)
    document["accounts"][0]["roles"] = {}
    import_document(full, document, by="test")
    (eve,) = DatabaseAccounts(full).list_accounts()
    assert (eve.has_password, eve.roles) == (True, {})


def test_a_document_with_problems_is_refused_whole_with_each_by_its_place(full, other):
    document = export_document(full)
    document["workflows"][1]["definition"]["tasks"][0]["type"] = "shel"
    document["workflows"].append(document["workflows"][0])
    with pytest.raises(DefinitionInvalid) as refused:
        import_document(other, document, by="test")
    found = {each.path: each.message for each in refused.value.problems}
    assert "did you mean 'shell'?" in found["workflows[1].definition.tasks[0].type"]
    assert found["workflows"] == "billing.off is listed twice"
    document = {"latchwork_workflows": 2, "pools": [{"name": "db", "size": 0}], "more": 1}
    with pytest.raises(DefinitionInvalid) as refused:
        import_document(other, document, by="test")
    assert {each.path for each in refused.value.problems} == {"latchwork_workflows", "pools[0].size", "more"}
    assert export_document(other)["workflows"] == []


def test_an_import_that_fails_on_its_way_writes_nothing(full, other, monkeypatch):
    def fail(*_args):
        raise RuntimeError("died here")

    monkeypatch.setattr("latchwork_workflows.maintenance.transfer._put_account", fail)
    with pytest.raises(RuntimeError):
        import_document(other, export_document(full), by="test")
    assert export_document(other)["workflows"] == []


def test_bundles_that_a_log_store_has_not_are_named(full):
    document = export_document(full)
    sha256 = "ab" * 32
    row = {"name": "p", "type": "python", "params": {"function": "flows:p", "bundle": sha256}}
    document["workflows"][0]["definition"]["tasks"].append(row)
    assert find_missing_bundles(document, lambda _: False) == [sha256]
    assert find_missing_bundles(document, lambda _: True) == []


def test_a_workflow_that_does_not_say_whether_it_is_online_or_scheduled_stays_as_it_is(full):
    before = export_document(full)
    plain = [{"definition": {**each["definition"], "timeout_s": 60.0}} for each in before["workflows"]]
    import_document(full, {"latchwork_workflows": 1, "workflows": plain}, by="test")
    after = export_document(full)["workflows"]
    assert [(each["online"], each["scheduled"]) for each in after] == [(False, True), (True, False)]
    assert [(each["online"], each["scheduled"]) for each in before["workflows"]] == [(False, True), (True, False)]
