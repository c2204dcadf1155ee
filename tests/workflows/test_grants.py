"""Tasks that name workflows of another project: only as far as that project lets theirs."""

import shutil
import uuid

import pytest

import latchwork
from latchwork_workflows.db import grants
from latchwork_workflows.db.commands import CommandType, send_command
from latchwork_workflows.db.history import list_user_actions
from latchwork_workflows.errors import DefinitionInvalid, NotFound
from latchwork_workflows.maintenance import export_document, import_document
from latchwork_workflows.schemas.grants import Grant
from latchwork_workflows.state import Outcome
from latchwork_workflows.web import Role
from patience import eventually
from workflows.hands import Stage, a_workflow, client_of

PAYROLL = a_workflow("payroll", project="a", tasks={"out": []}, params={"who": "nobody"})


@pytest.fixture
def stage(tmp_path, empty_database):
    shutil.copy(empty_database, tmp_path / "flows.db")
    with latchwork.connect(f"memory://{uuid.uuid4().hex}") as store:
        made = Stage(f"sqlite:///{tmp_path}/flows.db", store)
        yield made
        made.close()


@pytest.fixture
def client(stage):
    with client_of(stage.database, stage.store, by="ann") as client:
        yield client


def starts(workflow="a.payroll", project="b"):
    params = {"workflow": workflow, "params": {"who": "mallory"}}
    return a_workflow("thief", project=project, tasks={"call": {"type": "sub_process", "params": params}})


def waits(workflow="a.payroll", project="b"):
    on = {"type": "dependent", "params": {"on": {"workflow": workflow}}}
    return a_workflow("peeper", project=project, tasks={"look": on, "show": ["look"]})


def let(stage, role, grantee="b"):
    """Project `a` lets another use it."""
    with stage.database.write() as connection:
        grants.save_grant(connection, Grant(project="a", grantee=grantee, role=role.label))


def errors(stage):
    return [each[-1] for each in stage.attempts() if each[-1]]


def told(stage, project):
    with stage.database.read() as connection:
        return [each for each in list_user_actions(connection, projects=[project]) if each.project == project]


# When it is applied


@pytest.mark.parametrize("made", [starts(), waits()], ids=["sub_process", "dependent"])
@pytest.mark.parametrize("is_there", [True, False], ids=["of one that is there", "of one that is not"])
def test_a_definition_that_names_another_project_is_refused_in_the_same_words_whatever_is_there(
    stage, client, made, is_there
):
    if is_there:
        stage.apply(PAYROLL)
    plain = made.definition.model_dump(mode="json")
    with pytest.raises(DefinitionInvalid) as refused:
        client.workflows.apply(plain)
    ((path, why),) = refused.value.problems
    role = "operator" if path == "tasks[0].params.workflow" else "viewer"
    does = "start its workflows" if role == "operator" else "wait for its workflows"
    assert path in {"tasks[0].params.workflow", "tasks[0].params.on"}
    assert why == (
        f"project 'a' does not let project 'b' {does}; an administrator of it allows that with "
        f"`latchwork workflows grants set a b {role}`"
    )
    assert client.workflows.validate(plain) == refused.value.problems


def test_a_project_that_is_listed_may_name_what_its_role_allows(stage, client):
    client.grants.set("a", "b", "viewer")
    client.workflows.apply(waits().definition)
    with pytest.raises(DefinitionInvalid, match="does not let project 'b' start"):
        client.workflows.apply(starts().definition)
    client.grants.set("a", "b", "operator")
    client.workflows.apply(starts().definition)
    client.workflows.apply(waits().definition)


def test_a_project_that_lets_all_use_it_is_used_by_each(client):
    client.grants.set("a", "", "operator")
    for project in ("b", "c"):
        client.workflows.apply(starts(project=project).definition)


def test_a_name_without_a_project_means_one_of_the_project_default_and_needs_its_grant(client):
    with pytest.raises(DefinitionInvalid, match="project 'default' does not let project 'b' start"):
        client.workflows.apply(starts("payroll").definition)
    client.workflows.apply(starts("payroll", project="default").definition)


# When it runs


@pytest.mark.parametrize("role", [None, Role.VIEWER])
def test_a_sub_process_of_a_project_without_the_role_starts_nothing_and_fails(stage, role):
    if role is not None:
        let(stage, role)
    stage.apply(PAYROLL)
    with stage.master():
        made = stage.start(stage.apply(starts()))
        stage.until(made, "failure")
    assert stage.runs() == 1
    (why,) = errors(stage)
    assert "project 'a' does not let project 'b' start its workflows" in why


def test_a_grant_that_ends_ends_the_recovery_of_runs_that_it_allowed(stage):
    hand = stage.hand()
    let(stage, Role.OPERATOR)
    stage.apply(PAYROLL)
    with stage.master():
        made = stage.start(stage.apply(starts()))
        hand.end(hand.wait("out"), Outcome.FAILURE)
        stage.until(made, "failure")
        with stage.database.write() as connection:
            assert grants.remove_grant(connection, "a", "b")
        stage.send("recover", made)
        eventually(lambda: any("does not let" in each for each in errors(stage)))
        stage.until(made, "failure")
        assert hand.take() == {}


def test_the_audit_of_a_project_names_the_person_who_had_a_workflow_of_it_started_from_another(stage, client):
    let(stage, Role.OPERATOR)
    stage.apply(PAYROLL)
    version = client.workflows.apply(starts().definition)
    with stage.master():
        made = client.runs.start("b.thief").id(30)
        eventually(lambda: stage.runs() == 2)
    (used,) = [each for each in told(stage, "a") if each.kind == "start"]
    assert (used.by, used.run_id, version.version) == ("ann", made + 1, 1)
    assert used.details == {"workflow": "a.payroll", "from": "b.thief", "task": "call", "from_run": made}


def test_the_audit_names_who_wrote_a_workflow_that_its_schedule_starts(stage):
    let(stage, Role.OPERATOR)
    stage.apply(PAYROLL)
    version = stage.apply(starts(), author="mallory")
    with stage.master():
        with stage.database.write() as connection:
            args = {"code": version.code, "version": 1, "schedule_time": 1.0}
            send_command(connection, CommandType.TIMER, shard_id=0, args=args, by="schedule")
        stage.poke()
        eventually(lambda: stage.runs() == 2)
    assert [each.by for each in told(stage, "a") if each.kind == "start"] == ["mallory"]


def test_a_dependent_of_a_project_without_the_role_reads_nothing_and_fails(stage):
    hand = stage.hand()
    target, version = stage.apply(PAYROLL), stage.apply(waits())
    with stage.master():
        stage.start(target, schedule_time=1.0)
        hand.end(hand.wait("out"), outputs={"salary": 7})
        made = stage.start(version, schedule_time=2.0)
        stage.until(made, "failure")
    (why,) = errors(stage)
    assert "project 'a' does not let project 'b' wait for its workflows" in why


def test_a_dependent_of_a_project_that_is_listed_gets_outputs_and_the_audit_says_so(stage):
    hand = stage.hand()
    let(stage, Role.VIEWER)
    target, version = stage.apply(PAYROLL), stage.apply(waits(), author="bob")
    with stage.master():
        run = stage.start(target, schedule_time=1.0)
        hand.end(hand.wait("out"), outputs={"salary": 7})
        made = stage.start(version, schedule_time=2.0)
        assert hand.spec(hand.wait("show")).values["salary"] == 7
    (used,) = [each for each in told(stage, "a") if each.kind == "use outputs"]
    assert (used.by, used.run_id, used.details["from_run"]) == ("bob", run, made)


def test_nobody_is_told_of_runs_that_a_dependent_may_not_see(stage, client):
    """What it waits for is shown to those who see the task: how that stands is the other project's."""
    hand = stage.hand()
    let(stage, Role.VIEWER)
    on = {"type": "dependent", "params": {"on": {"all": ["a.payroll", "b.other"]}}}
    version = stage.apply(a_workflow("peeper", project="b", tasks={"look": on}))
    target = stage.apply(PAYROLL)
    with stage.master():
        made = stage.start(version, schedule_time=2.0)
        stage.until_task(made, look="running")
        run = stage.start(target, schedule_time=1.0)
        hand.end(hand.wait("out"))
        stage.until(run, "success")
    assert "a.payroll" not in client.runs.explain(made).tasks["look"]
    with stage.database.write() as connection:
        grants.remove_grant(connection, "a", "b")
    assert "a.payroll" in client.runs.explain(made).tasks["look"]


# Who says so


def test_grants_are_listed_removed_and_told(stage, client):
    client.grants.set("a", "b", "viewer")
    client.grants.set("a", "b", "operator")
    client.grants.set("a", "", "viewer")
    assert client.grants.list("a") == [
        Grant(project="a", grantee="", role="viewer"),
        Grant(project="a", grantee="b", role="operator"),
    ]
    client.grants.remove("a", "b")
    with pytest.raises(NotFound, match="no grant of project 'a' to project 'b'"):
        client.grants.remove("a", "b")
    assert client.grants.list() == [Grant(project="a", grantee="", role="viewer")]
    assert next((each.kind, each.by) for each in told(stage, "a")) == ("grant end", "ann")


def test_grants_are_carried_to_another_database_and_an_import_needs_them(stage, client):
    client.grants.set("a", "b", "operator")
    client.workflows.apply(starts().definition)
    document = export_document(stage.database)
    assert document["grants"] == [{"project": "a", "grantee": "b", "role": "operator"}]
    client.grants.remove("a", "b")
    assert [each.what for each in import_document(stage.database, document, by="ann") if each.kind == "grant"] == [
        "new"
    ]
    client.grants.remove("a", "b")
    changed = {**document["workflows"][0], "online": False}
    with pytest.raises(DefinitionInvalid, match="does not let project 'b' start"):
        import_document(stage.database, {**document, "grants": [], "workflows": [changed]}, by="ann")
