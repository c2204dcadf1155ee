"""Channels and deliveries as people see and change them: desk, command line, export, doctor, retention."""

import json
import time

import pytest
import sqlalchemy as sa

from latchwork.cli.main import application
from latchwork_workflows.alerts.channels import ChannelInvalid, checked_channel
from latchwork_workflows.db import Database
from latchwork_workflows.db.accounts import DatabaseAccounts
from latchwork_workflows.db.alerts import put
from latchwork_workflows.db.tables import alert, delivery, event
from latchwork_workflows.errors import DefinitionInvalid
from latchwork_workflows.installation import initialize, join_store
from latchwork_workflows.maintenance import Doctor, document_of, import_document
from latchwork_workflows.master import Master
from latchwork_workflows.master.cleanup import Chores
from latchwork_workflows.model.validate import validate
from latchwork_workflows.secrets import Secrets
from latchwork_workflows.services import Parts
from latchwork_workflows.services import alerts as desk
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.web import Identity, Problem, Role
from patience import eventually
from workflows.hands import a_workflow
from workflows.mail_servers import HookServer, running

ADMIN = Identity("ann", {"": Role.ADMIN})
EDITOR = Identity("ed", {"default": Role.EDITOR})
HOOK = {"url": "https://hooks.example.org/${secret:HOOK}"}
MAIL = {"host": "mail.example.org", "sender": "flows@example.org", "to": ["ops@example.org"]}


@pytest.fixture
def parts(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/flows.db")
    initialize(database, shards=1)
    yield Parts(database, DatabaseAccounts(database))
    database.close()


def told(parts, channel="ops", *, state="pending", run=None):
    """A test of a channel, written as if it had been asked for."""
    with parts.database.write() as connection:
        made = put(connection, [channel], kind="test", cause=f"{time.time()}", now=1.0, details={}, run=run)
        connection.execute(sa.update(delivery).where(delivery.c.alert == made).values(state=state))
        return connection.execute(sa.select(delivery.c.id).where(delivery.c.alert == made)).scalar_one()


# Definitions


def problems(**alerts):
    task = {"name": "a", "type": "shell", "params": {"script": "true"}}
    return [tuple(each) for each in validate({"name": "w", "alerts": alerts, "tasks": [task]}, TaskTypes())]


def test_what_is_wrong_with_alerts_is_named_by_its_place():
    assert problems(channels=["ops"]) == []
    assert problems(channels=["ops", "ops"]) == [("alerts.channels[1]", "'ops' is there twice")]
    assert problems(channels=["ops"], on="none", timeouts=False)[0][0] == "alerts"
    assert problems()[0] == ("alerts.channels", "this has to be given")
    assert problems(channels=["o/ps"])[0][0] == "alerts.channels[0]"
    assert problems(channels=["ops"], on="always")[0][0] == "alerts.on"


def test_alerts_are_the_same_in_python_as_in_yaml():
    from latchwork_workflows import Alerts, shell, workflow
    from latchwork_workflows.model import read, write

    @workflow(alerts=Alerts("ops", "chat", on="all", failover=True))
    def flow():
        shell("true")

    said = write(flow.definition)
    assert read(said)["alerts"] == {"on": "all", "channels": ["ops", "chat"], "failover": True}


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
        checked_channel("ops", kind, options)
    assert [path for path, _ in refused.value.problems] == [place]
    assert "hunter2" not in str(refused.value)


def test_channels_are_kept_by_administrators_of_everything_and_each_change_is_audit(parts):
    with pytest.raises(Problem, match="is no admin"):
        desk.set_channel(parts, EDITOR, "ops", "smtp", MAIL)
    assert desk.set_channel(parts, ADMIN, "ops", "smtp", MAIL)
    assert not desk.set_channel(parts, ADMIN, "ops", "webhook", HOOK)
    (seen,) = desk.channels(parts, ADMIN)
    assert (seen.kind, seen.options, seen.secrets) == ("webhook", HOOK, ["HOOK"])
    desk.remove_channel(parts, ADMIN, "ops")
    with pytest.raises(Problem, match="there is no channel ops"):
        desk.remove_channel(parts, ADMIN, "ops")
    with parts.database.read() as connection:
        kinds = connection.execute(sa.select(event.c.kind).order_by(event.c.id)).scalars().all()
    assert kinds == ["channel set", "channel set", "channel removed"]


def test_a_delivery_that_was_given_up_is_sent_again_as_another_message(parts):
    number = told(parts, state="failed")
    desk.resend(parts, ADMIN, number)
    (seen,) = desk.listed(parts, ADMIN)
    (row,) = seen.deliveries
    assert (row.state, row.round, row.tries, row.doubts) == ("pending", 2, 0, 0)


def test_a_delivery_that_is_being_sent_is_not_asked_for_again(parts):
    number = told(parts, state="sending")
    with pytest.raises(Problem, match="is being sent right now"):
        desk.resend(parts, ADMIN, number)


def test_tests_of_channels_are_seen_by_who_sees_everything_only(parts):
    number = told(parts)
    assert desk.listed(parts, EDITOR) == []
    with pytest.raises(Problem, match="there is no delivery"):
        desk.resend(parts, EDITOR, number)


def test_alerts_are_listed_by_the_state_of_a_delivery(parts):
    told(parts, state="sent")
    told(parts, state="failed")
    assert [len(desk.listed(parts, ADMIN, state=each)) for each in ("sent", "failed", "unsure")] == [1, 1, 0]
    with pytest.raises(Problem, match="is none of pending"):
        desk.listed(parts, ADMIN, state="lost")


# Export, doctor, retention


def test_channels_are_carried_with_the_names_of_their_secrets(parts, tmp_path):
    desk.set_channel(parts, ADMIN, "chat", "webhook", HOOK)
    document = document_of(parts.database)
    assert document["channels"] == [{"name": "chat", "kind": "webhook", "options": HOOK, "enabled": True}]
    other = Database(f"sqlite:///{tmp_path}/other.db")
    initialize(other, shards=1)
    changes = import_document(other, document, by="eve")
    assert [(each.kind, each.name, each.what) for each in changes] == [("channel", "chat", "new")]
    assert document_of(other)["channels"] == document["channels"]
    assert import_document(other, document, by="eve")[0].what == "same"
    with pytest.raises(DefinitionInvalid, match=r"channels\[0\].options.url"):
        import_document(other, {**document, "channels": [{**document["channels"][0], "options": {"url": "x"}}]}, by="e")
    other.close()


def test_the_doctor_names_channels_that_nobody_has_made_and_deliveries_that_nobody_sends(stage):
    join_store(stage.database, stage.store, stage.keys)
    stage.apply(a_workflow(alerts={"channels": ["ops"]}))
    with stage.database.write() as connection:
        put(connection, ["chat"], kind="test", cause="1", now=time.time() - 3600.0, details={})
    found = Doctor(stage.database, stage.store, wait=lambda _: None).look()
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
        put(connection, ["ops"], kind="success", cause="1", now=1.0, details={}, run=run, code=version.code)
        put(connection, ["ops"], kind="test", cause="1", now=1.0, details={})
    Chores(stage.database, None).run()
    assert stage.count(alert) == 1
    with stage.database.write() as connection:
        connection.exec_driver_sql(f"DELETE FROM instance WHERE id = {run}")
    assert (stage.count(alert), stage.count(delivery)) == (0, 0)


# The whole way


def test_a_run_that_fails_is_told_by_a_master_that_has_the_job(stage, tmp_path):
    join_store(stage.database, stage.store, stage.keys)
    version = stage.apply(
        a_workflow(tasks={"a": {"type": "noop", "params": {}}}, alerts={"channels": ["chat"], "on": "all"})
    )
    secrets = Secrets(environ={"LATCHWORK_CHANNEL_SECRET_HOOK": "t0ken"}, providers=())
    with running(HookServer()) as hook:
        made = Parts(stage.database, DatabaseAccounts(stage.database))
        desk.set_channel(made, ADMIN, "chat", "webhook", {"url": f"http://127.0.0.1:{hook.port}/${{secret:HOOK}}"})
        with Master(stage.database, stage.store, secrets=secrets, alerts_every_s=0.1, lock_ttl_s=5.0):
            run = stage.start(version)
            stage.send("stop", run)
            eventually(lambda: hook.posts, 60.0)
    ((path, _, _, body),) = hook.posts
    assert (path, body["kind"], body["instance"]) == ("/t0ken", "stopped", run)


# The command line


@pytest.fixture
def told_by(tmp_path, parts, capsys, monkeypatch):
    monkeypatch.setenv("LATCHWORK_WORKFLOWS_HOME", str(tmp_path))

    def run(*words):
        try:
            application()(["workflows", *words], standalone_mode=True)
        except SystemExit as end:
            out = capsys.readouterr()
            return end.code or 0, out.out, out.err
        raise AssertionError

    return run


def test_channels_are_set_listed_and_removed_by_commands(told_by, parts):
    code, out, _ = told_by("channels", "set", "ops", "--kind", "smtp", "-o", "host=mail.example.org",
                           "-o", "sender=flows@example.org", "-o", "to=a@example.org", "-o", "to=b@example.org",
                           "-o", "port=2525", "-o", "password=${secret:MAIL}")  # fmt: skip
    assert (code, out) == (0, "channel ops is made\n")
    found = json.loads(told_by("channels", "list", "--json")[1])["channels"]
    assert found[0]["options"]["to"] == ["a@example.org", "b@example.org"]
    assert found[0]["options"]["port"] == 2525
    assert found[0]["secrets"] == ["MAIL"]
    assert told_by("channels", "rm", "ops")[:2] == (0, "channel ops is gone\n")
    code, _, err = told_by("channels", "rm", "ops")
    assert (code != 0, "there is no channel ops" in err) == (True, True)


def test_a_channel_with_a_password_in_it_is_refused_by_the_command(told_by):
    code, _, err = told_by("channels", "set", "x", "--kind", "webhook", "-o", "url=https://a:b@example.org/")
    assert code != 0
    assert "options.url" in err


def test_alerts_are_listed_and_sent_again_by_commands(told_by, parts):
    assert told_by("alerts")[1] == "no alerts\n"
    number = told(parts, state="failed")
    assert told_by("alerts", "--resend", str(number))[1] == f"delivery {number} is sent again\n"
    (seen,) = json.loads(told_by("alerts", "--json")[1])["alerts"]
    assert (seen["kind"], seen["deliveries"][0]["state"]) == ("test", "pending")
    assert "ops" in told_by("alerts", "--state", "pending")[1]


def test_a_test_of_a_channel_that_no_master_sends_is_said(told_by, parts):
    desk.set_channel(parts, ADMIN, "ops", "webhook", {"url": "http://127.0.0.1:9/"})
    code, out, _ = told_by("channels", "test", "ops", "--timeout-s", "0")
    assert code == 1
    assert out == "channel ops: pending: no master has sent it yet\n"


def test_a_test_of_a_channel_is_found_among_any_number_of_alerts(told_by, parts, monkeypatch):
    desk.set_channel(parts, ADMIN, "ops", "webhook", {"url": "http://127.0.0.1:9/"})
    asked = desk.test_channel

    def and_many_more(*args):
        number = asked(*args)
        with parts.database.write() as connection:
            rows = [
                {"kind": "test", "cause": f"later {each}", "task": "", "at": 1.0, "details": {}} for each in range(1001)
            ]
            connection.execute(sa.insert(alert), rows)
        return number

    monkeypatch.setattr(desk, "test_channel", and_many_more)
    code, out, _ = told_by("channels", "test", "ops", "--timeout-s", "0", "--json")
    assert (code, json.loads(out)["deliveries"][0]["channel"]) == (1, "ops")
