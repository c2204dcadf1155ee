"""Channels and deliveries as people see and change them: desk, command line, export, doctor, retention."""

import json
import time

import pytest
import sqlalchemy as sa

from latchwork.cli.main import application
from latchwork_workflows.alerts.channels import ChannelInvalid, validate_channel
from latchwork_workflows.db import Database
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.db.alerts import create_alert
from latchwork_workflows.db.tables import alert, delivery, event
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.installation import initialize, join_store
from latchwork_workflows.maintenance import Doctor, export_document, import_document
from latchwork_workflows.master import Master
from latchwork_workflows.master.cleanup import Cleanup
from latchwork_workflows.model.validate import find_problems
from latchwork_workflows.secrets import Secrets
from latchwork_workflows.services import ServiceContext
from latchwork_workflows.services import alerts as desk
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.web import HttpProblem, Identity, Role
from patience import eventually
from workflows.hands import a_workflow
from workflows.mail_servers import HookServer, running

ADMIN = Identity("ann", {"": Role.ADMIN})
EDITOR = Identity("ed", {"default": Role.EDITOR})
HOOK = {"url": "https://hooks.example.org/${secret:HOOK}"}
MAIL = {"host": "mail.example.org", "sender": "flows@example.org", "to": ["ops@example.org"]}


@pytest.fixture
def context(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/flows.db")
    initialize(database, shards=1)
    yield ServiceContext(database, DatabaseAccounts(database))
    database.close()


def told(context, channel="ops", *, state="pending", run=None):
    """A test of a channel, written as if it had been asked for."""
    with context.database.write() as connection:
        made = create_alert(connection, [channel], kind="test", cause=f"{time.time()}", now=1.0, details={}, run=run)
        connection.execute(sa.update(delivery).where(delivery.c.alert == made).values(state=state))
        return connection.execute(sa.select(delivery.c.id).where(delivery.c.alert == made)).scalar_one()


# Definitions


def problems(**alerts):
    task = {"name": "a", "type": "shell", "params": {"script": "true"}}
    return [tuple(each) for each in find_problems({"name": "w", "alerts": alerts, "tasks": [task]}, TaskTypes())]


def test_what_is_wrong_with_alerts_is_named_by_its_place():
    assert problems(channels=["ops"]) == []
    assert problems(channels=["ops", "ops"]) == [("alerts.channels[1]", "'ops' is listed twice")]
    assert problems(channels=["ops"], on="none", timeouts=False)[0][0] == "alerts"
    assert problems()[0] == ("alerts.channels", "this is required")
    assert problems(channels=["o/ps"])[0][0] == "alerts.channels[0]"
    assert problems(channels=["ops"], on="always")[0][0] == "alerts.on"


def test_alerts_are_the_same_in_python_as_in_yaml():
    from latchwork_workflows import Alerts, shell, workflow
    from latchwork_workflows.model import format_yaml, parse_yaml

    @workflow(alerts=Alerts("ops", "chat", on="all", failover=True))
    def flow():
        shell("true")

    said = format_yaml(flow.definition)
    assert parse_yaml(said)["alerts"] == {"on": "all", "channels": ["ops", "chat"], "failover": True}


# Channels


@pytest.mark.parametrize(
    ("kind", "options", "place"),
    [
        ("smtp", {**MAIL, "password": "hunter2"}, "options.password"),
        ("smtp", {**MAIL, "sender": "x@example.org\r\nBcc: y@example.org"}, "options.sender"),
        ("smtp", {**MAIL, "to": ["nobody"]}, "options.to"),
        ("smtp", {**MAIL, "host": "mail example"}, "options.host"),
        ("smtp", {"host": "mail.example.org"}, "options.sender"),
        ("webhook", {"url": "ftp://example.org/"}, "options.url"),
        ("webhook", {"url": "https://ann:hunter2@example.org/"}, "options.url"),
        ("webhook", {**HOOK, "headers": {"Authorization": "Bearer hunter2"}}, "options.headers"),
        ("webhook", {**HOOK, "headers": {"Host": "evil"}}, "options.headers"),
        ("webhook", {**HOOK, "headers": {"X": "a\r\nb"}}, "options.headers.X"),
        ("webhook", {**HOOK, "signing_key": "hunter2"}, "options.signing_key"),
        ("webhook", {**HOOK, "follow": True}, "options.follow"),
        ("apprise", {"url": "slack://token/token"}, "options.url"),
        ("pigeon", {}, "kind"),
    ],
)
def test_a_channel_that_cannot_be_used_or_has_a_secret_in_it_is_refused_by_its_place(kind, options, place):
    with pytest.raises(ChannelInvalid) as refused:
        validate_channel("ops", kind, options)
    assert [path for path, _ in refused.value.problems] == [place]
    assert "hunter2" not in str(refused.value)


def test_channels_are_kept_by_administrators_of_everything_and_each_change_is_audit(context):
    with pytest.raises(HttpProblem, match="does not have the role admin"):
        desk.set_channel(context, EDITOR, "ops", "smtp", MAIL)
    assert desk.set_channel(context, ADMIN, "ops", "smtp", MAIL)
    assert not desk.set_channel(context, ADMIN, "ops", "webhook", HOOK)
    (seen,) = desk.list_channels(context, ADMIN)
    assert (seen.kind, seen.options, seen.secrets) == ("webhook", HOOK, ["HOOK"])
    desk.remove_channel(context, ADMIN, "ops")
    with pytest.raises(HttpProblem, match="there is no channel ops"):
        desk.remove_channel(context, ADMIN, "ops")
    with context.database.read() as connection:
        kinds = connection.execute(sa.select(event.c.kind).order_by(event.c.id)).scalars().all()
    assert kinds == ["channel set", "channel set", "channel removed"]


def test_a_delivery_that_was_given_up_is_sent_again_as_another_message(context):
    number = told(context, state="failed")
    desk.resend_delivery(context, ADMIN, number)
    (seen,) = desk.list_alerts(context, ADMIN)
    (row,) = seen.deliveries
    assert (row.state, row.round, row.tries, row.doubts) == ("pending", 2, 0, 0)


def test_a_delivery_that_is_being_sent_is_not_asked_for_again(context):
    number = told(context, state="sending")
    with pytest.raises(HttpProblem, match="is being sent"):
        desk.resend_delivery(context, ADMIN, number)


def test_tests_of_channels_are_seen_by_who_sees_everything_only(context):
    number = told(context)
    assert desk.list_alerts(context, EDITOR) == []
    with pytest.raises(HttpProblem, match="there is no delivery"):
        desk.resend_delivery(context, EDITOR, number)


def test_alerts_are_listed_by_the_state_of_a_delivery(context):
    told(context, state="sent")
    told(context, state="failed")
    assert [len(desk.list_alerts(context, ADMIN, state=each)) for each in ("sent", "failed", "unsure")] == [1, 1, 0]
    with pytest.raises(HttpProblem, match="is not one of pending"):
        desk.list_alerts(context, ADMIN, state="lost")


# Export, doctor, retention


def test_channels_are_carried_with_the_names_of_their_secrets(context, tmp_path):
    desk.set_channel(context, ADMIN, "chat", "webhook", HOOK)
    document = export_document(context.database)
    assert document["channels"] == [{"name": "chat", "kind": "webhook", "options": HOOK, "enabled": True}]
    other = Database(f"sqlite:///{tmp_path}/other.db")
    initialize(other, shards=1)
    changes = import_document(other, document, by="eve")
    assert [(each.kind, each.name, each.what) for each in changes] == [("channel", "chat", "new")]
    assert export_document(other)["channels"] == document["channels"]
    assert import_document(other, document, by="eve")[0].what == "same"
    with pytest.raises(DefinitionInvalid, match=r"channels\[0\].options.url"):
        import_document(other, {**document, "channels": [{**document["channels"][0], "options": {"url": "x"}}]}, by="e")
    other.close()


def test_the_doctor_names_channels_that_nobody_has_made_and_deliveries_that_nobody_sends(stage):
    join_store(stage.database, stage.store, stage.keys)
    stage.apply(a_workflow(alerts={"channels": ["ops"]}))
    with stage.database.write() as connection:
        create_alert(connection, ["chat"], kind="test", cause="1", now=time.time() - 3600.0, details={})
    found = Doctor(stage.database, stage.store, wait=lambda _: None).check()
    assert [(each.kind, each.subject) for each in found if each.kind != "no master"] == [
        ("no channel", "ops"),
        ("stuck alert", "delivery 1 by chat"),
    ]


def test_alerts_go_with_their_runs_and_tests_of_channels_by_their_age(stage):
    version = stage.apply(a_workflow(tasks={"a": []}, alerts={"channels": ["ops"], "on": "all"}))
    with stage.master():
        run = stage.start(version, dry=True)
        stage.until(run, "success")
    with stage.database.write() as connection:
        create_alert(connection, ["ops"], kind="success", cause="1", now=1.0, details={}, run=run, code=version.code)
        create_alert(connection, ["ops"], kind="test", cause="1", now=1.0, details={})
    Cleanup(stage.database, None).run()
    assert stage.count(alert) == 1
    with stage.database.write() as connection:
        connection.exec_driver_sql(f"DELETE FROM workflow_run WHERE id = {run}")
    assert (stage.count(alert), stage.count(delivery)) == (0, 0)


# The whole way


def test_a_run_that_fails_is_told_by_a_master_that_has_the_job(stage, tmp_path):
    join_store(stage.database, stage.store, stage.keys)
    version = stage.apply(
        a_workflow(tasks={"a": {"type": "noop", "params": {}}}, alerts={"channels": ["chat"], "on": "all"})
    )
    secrets = Secrets(environ={"LATCHWORK_CHANNEL_SECRET_HOOK": "t0ken"}, providers=())
    with running(HookServer()) as hook:
        made = ServiceContext(stage.database, DatabaseAccounts(stage.database))
        desk.set_channel(made, ADMIN, "chat", "webhook", {"url": f"http://127.0.0.1:{hook.port}/${{secret:HOOK}}"})
        with Master(stage.database, stage.store, secrets=secrets, alerts_every_s=0.1, lock_ttl_s=5.0):
            run = stage.start(version)
            stage.send("stop", run)
            eventually(lambda: hook.posts, 60.0)
    ((path, _, _, body),) = hook.posts
    assert (path, body["kind"], body["run"]) == ("/t0ken", "stopped", run)


# The command line


@pytest.fixture
def told_by(tmp_path, context, capsys, monkeypatch):
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_HOME", str(tmp_path))

    def run(*words):
        try:
            application()(["workflows", *words], standalone_mode=True)
        except SystemExit as end:
            out = capsys.readouterr()
            return end.code or 0, out.out, out.err
        raise AssertionError

    return run


def test_channels_are_set_listed_and_removed_by_commands(told_by, context):
    code, out, _ = told_by("channels", "set", "ops", "--kind", "smtp", "-o", "host=mail.example.org",
                           "-o", "sender=flows@example.org", "-o", "to=a@example.org", "-o", "to=b@example.org",
                           "-o", "port=2525", "-o", "password=${secret:MAIL}")  # fmt: skip
    assert (code, out) == (0, "channel ops created\n")
    found = json.loads(told_by("channels", "list", "--json")[1])["channels"]
    assert found[0]["options"]["to"] == ["a@example.org", "b@example.org"]
    assert found[0]["options"]["port"] == 2525
    assert found[0]["secrets"] == ["MAIL"]
    assert told_by("channels", "rm", "ops")[:2] == (0, "channel ops deleted\n")
    code, _, err = told_by("channels", "rm", "ops")
    assert (code != 0, "there is no channel ops" in err) == (True, True)


def test_a_channel_with_a_password_in_it_is_refused_by_the_command(told_by):
    code, _, err = told_by("channels", "set", "x", "--kind", "webhook", "-o", "url=https://a:b@example.org/")
    assert code != 0
    assert "options.url" in err


def test_alerts_are_listed_and_sent_again_by_commands(told_by, context):
    assert told_by("alerts")[1] == "no alerts\n"
    number = told(context, state="failed")
    assert told_by("alerts", "--resend", str(number))[1] == f"delivery {number} will be sent again\n"
    (seen,) = json.loads(told_by("alerts", "--json")[1])["alerts"]
    assert (seen["kind"], seen["deliveries"][0]["state"]) == ("test", "pending")
    assert "ops" in told_by("alerts", "--state", "pending")[1]


def test_a_test_of_a_channel_that_no_master_sends_is_said(told_by, context):
    desk.set_channel(context, ADMIN, "ops", "webhook", {"url": "http://127.0.0.1:9/"})
    code, out, _ = told_by("channels", "test", "ops", "--timeout-s", "0")
    assert code == 1
    assert out == "channel ops: pending: no master has sent the test yet\n"


def test_a_test_of_a_channel_is_found_among_any_number_of_alerts(told_by, context, monkeypatch):
    desk.set_channel(context, ADMIN, "ops", "webhook", {"url": "http://127.0.0.1:9/"})
    asked = desk.send_test_alert

    def and_many_more(*args):
        number = asked(*args)
        with context.database.write() as connection:
            rows = [
                {"kind": "test", "cause": f"later {each}", "task": "", "at": 1.0, "details": {}} for each in range(1001)
            ]
            connection.execute(sa.insert(alert), rows)
        return number

    monkeypatch.setattr(desk, "send_test_alert", and_many_more)
    code, out, _ = told_by("channels", "test", "ops", "--timeout-s", "0", "--json")
    assert (code, json.loads(out)["deliveries"][0]["channel"]) == (1, "ops")
