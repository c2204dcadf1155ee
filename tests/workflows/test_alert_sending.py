"""The sender of alerts, against real servers: whatever dies when, each message comes at least once, at most twice."""

import itertools
import logging
import threading
import time
from contextlib import contextmanager, suppress

import pytest
import sqlalchemy as sa

from latchwork_workflows.alerts.delivery import NotSent
from latchwork_workflows.alerts.sender import SEND_FUNCTIONS, AlertSender
from latchwork_workflows.db import alerts
from latchwork_workflows.db.alerts import create_alert
from latchwork_workflows.db.database import DatabaseUnavailable
from latchwork_workflows.db.tables import alert, channel, delivery
from latchwork_workflows.errors import NotOwner
from latchwork_workflows.installation import initialize, load_installation
from latchwork_workflows.logs import open_logs
from latchwork_workflows.secrets import Secrets
from latchwork_workflows.state.alerts import SendResult
from patience import eventually
from workflows.mail_servers import HookServer, MailServer, running

NOW = 1_764_000_000.0
DETAILS = {"workflow": "default.flow", "run": 1, "failed": [{"name": "a", "error": "no such table"}]}
both_databases = pytest.mark.parametrize("database_url", [pytest.param("sqlite", id="file"), "postgres"], indirect=True)


class Killed(BaseException):
    """The process is gone from here on."""


@pytest.fixture
def mail():
    with running(MailServer()) as server:
        yield server


@pytest.fixture
def hook():
    with running(HookServer()) as server:
        yield server


class Office:
    """A database with channels, and senders on it, which a test lets die."""

    def __init__(self, database):
        self.database = database
        self.tokens = itertools.count(1)
        self.now = NOW
        initialize(database, shards=1)

    def channel(self, name, kind, **options):
        with self.database.write() as connection:
            connection.execute(
                sa.insert(channel).values(name=name, kind=kind, options=options, changed_at=NOW, enabled=True)
            )

    def mail_channel(self, server, name="ops", **options):
        given = {"host": "127.0.0.1", "port": server.port, "security": "none", "sender": "flows@example.org"}
        self.channel(name, "smtp", **{**given, "to": ["a@example.org"], "timeout_s": 60.0, **options})

    def hook_channel(self, server, name="chat", path="/alerts", **options):
        given = {"url": f"http://127.0.0.1:{server.port}{path}", "timeout_s": 60.0}
        self.channel(name, "webhook", **{**given, **options})

    def give_time(self):
        """Let the next message of each channel take long: a busy machine must not break it off."""
        with self.database.write() as connection:
            for row in connection.execute(sa.select(channel)).all():
                options = {**row.options, "timeout_s": 60.0}
                connection.execute(sa.update(channel).where(channel.c.name == row.name).values(options=options))

    def tell(self, *channels, cause="1@1.0", kind="failure", task="", **details):
        with self.database.write() as connection:
            said = {**DETAILS, **details}
            return create_alert(connection, channels, kind=kind, cause=cause, now=NOW, details=said, task_name=task)

    def sender(self, token=None, **options):
        given = {"poll_s": 0.05, "now": lambda: self.now, **options}
        secrets = given.pop("secrets", {})
        return AlertSender(
            self.database, Secrets(environ=secrets, providers=()), token=token or next(self.tokens), **given
        )

    @contextmanager
    def sending(self, token=None, **options):
        made = self.sender(token, **options)
        errors = []

        def work():
            try:
                made.run()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, name="sender")
        thread.start()
        try:
            yield made
        finally:
            made.stop()
            thread.join()
        if errors:
            raise errors[0]

    def rows(self):
        with self.database.read() as connection:
            return connection.execute(sa.select(delivery).order_by(delivery.c.id)).all()

    def states(self):
        return [row.state for row in self.rows()]

    def until(self, *states):
        return eventually(lambda: self.states() == list(states) and self.rows(), 30.0)

    def until_doubted(self):
        """Until one sending of the first delivery is in doubt; one that was refused before is sent again."""

        def look():
            row = self.rows()[0]
            if not row.doubts and row.state == "pending":
                self.later(60.0)
            return row.doubts == 1

        eventually(look, 30.0)

    def later(self, seconds=3600.0):
        self.now += seconds


@pytest.fixture
def office(database):
    return Office(database)


@pytest.fixture
def database_url(request, tmp_path):
    """A file, unless a test asks for both."""
    return f"sqlite:///{tmp_path}/flows.db"


def test_a_mail_says_what_failed_and_is_named_by_its_delivery(office, mail):
    office.mail_channel(mail, sender="Wächter <flows@example.org>", link="https://flows.example.org/")
    office.tell("ops")
    with office.sending():
        (row,) = office.until("sent")
    (got,) = mail.mails
    assert got["Subject"] == "[latchwork] default.flow failed"
    assert got["From"] == "Wächter <flows@example.org>"
    assert got["Message-ID"].startswith(f"<{row.id}.1@")
    assert "a: no such table" in got.get_content()
    assert mail.envelopes == [["a@example.org"]]
    assert (row.tries, row.doubts, row.next_at, row.error) == (0, 0, None, None)


def test_a_webhook_gets_json_signed_with_a_key_that_only_the_machine_knows(office, hook):
    import hashlib
    import hmac

    office.hook_channel(hook, path="/in/${secret:HOOK}", signing_key="${secret:KEY}", headers={"X-Team": "ops"})
    office.tell("chat")
    with office.sending(secrets={"LATCHWORK_CHANNEL_SECRET_HOOK": "t0ken", "LATCHWORK_CHANNEL_SECRET_KEY": "key"}):
        (row,) = office.until("sent")
    ((path, headers, raw, body),) = hook.posts
    assert path == "/in/t0ken"
    assert (body["kind"], body["workflow"], headers["X-Team"]) == ("failure", "default.flow", "ops")
    moment = headers["X-Latchwork-Timestamp"]
    signed = hmac.new(b"key", f"{moment}.".encode() + raw, hashlib.sha256).hexdigest()
    assert headers["X-Latchwork-Signature"] == f"sha256={signed}"
    assert headers["X-Latchwork-Delivery"] == f"{row.id}.1"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Killed()], ids=repr)
def test_a_channel_that_raises_anything_is_in_doubt_and_the_next_message_is_sent(office, mail, error):
    def breaks(*_):
        raise error

    office.channel("broken", "webhook", url="http://127.0.0.1:1/", timeout_s=5.0)
    office.mail_channel(mail)
    office.tell("broken", "ops")
    with office.sending(send_functions={**SEND_FUNCTIONS, "webhook": breaks}):
        eventually(lambda: mail.mails, 30.0)
        row = eventually(lambda: next((row for row in office.rows() if row.doubts), None), 30.0)
    assert type(error).__name__ in row.error


# Crashes


class Dying:
    """A step of a sender that dies with it, before or after the message is out."""

    def __init__(self, send, when):
        self.send, self.when = send, when

    def __call__(self, taken):
        if self.when == "before it is out":
            raise Killed
        self.send(taken)
        raise Killed


def dies(office, monkeypatch, when):
    """Let a sender die at a step of its first delivery."""
    with monkeypatch.context() as patched:
        patched.setattr("threading.excepthook", lambda _: None)
        made = office.sender()
        if when in {"before it is out", "after it is out"}:
            made._send = Dying(made._send, when)
        take, answer = alerts.SenderLease.claim, alerts.SenderLease.record_result

        def taking(self, connection, *args):
            if when == "before it is marked":
                raise Killed
            found = take(self, connection, *args)
            if when == "before the mark is committed":
                raise Killed
            return found

        def answering(self, connection, *args):
            if when == "before the answer is written":
                raise Killed
            found = answer(self, connection, *args)
            if when == "before the answer is committed":
                raise Killed
            return found

        patched.setattr(alerts.SenderLease, "claim", taking)
        patched.setattr(alerts.SenderLease, "record_result", answering)
        with office.database.write() as connection:
            made._sending.acquire(connection)
        made._installation = load_installation(office.database).id
        made._start_due()
        for each in made._active_threads():
            each.join()


@both_databases
@pytest.mark.parametrize(
    ("when", "mails"),
    [
        ("before it is marked", 1),
        ("before the mark is committed", 1),
        ("before it is out", 1),
        ("after it is out", 2),
        ("before the answer is written", 2),
        ("before the answer is committed", 2),
        ("never", 1),
    ],
)
def test_a_mail_comes_though_its_sender_dies_at_any_step(office, mail, monkeypatch, when, mails):
    office.mail_channel(mail)
    office.tell("ops")
    dies(office, monkeypatch, when)
    with office.sending():
        eventually(lambda: office.later(60.0) or office.states() == ["sent"])
    assert len(mail.mails) == mails
    assert len({each["Message-ID"] for each in mail.mails}) == 1


def test_a_mail_whose_second_sender_dies_too_is_not_sent_a_third_time(office, mail, monkeypatch):
    office.mail_channel(mail)
    office.tell("ops")
    for _ in range(2):
        dies(office, monkeypatch, "after it is out")
        with office.sending(now=lambda: NOW):
            eventually(lambda: "sending" not in office.states())
        office.later(60.0)
    with office.sending():
        (row,) = office.until("unsure")
    assert len(mail.mails) == 2
    assert row.error == "its sender ended before it received an answer"


@both_databases
def test_a_former_sender_that_wakes_takes_nothing_more(office, mail):
    office.mail_channel(mail)
    former = office.sender()
    with office.database.write() as connection:
        former._sending.acquire(connection)
    with office.sending():
        office.tell("ops", cause="first")
        office.until("sent")
    office.tell("ops", cause="second")
    with pytest.raises(NotOwner), office.database.write() as connection:
        former._sending.claim(connection, office.rows()[1].id, NOW)
    assert office.states() == ["sent", "pending"]


def test_what_a_frozen_sender_has_in_hand_comes_twice_at_most_and_its_answer_changes_nothing(office, mail):
    office.mail_channel(mail)
    office.tell("ops")
    frozen, go = threading.Event(), threading.Event()

    def send(message, options, at):
        from latchwork_workflows.alerts import mail as module

        frozen.set()
        assert go.wait(30)
        return module.send(message, options, at)

    with office.sending(send_functions={"smtp": send}):
        assert frozen.wait(30)
        with office.sending():
            eventually(lambda: office.later(60.0) or office.states() == ["sent"])
            assert len(mail.mails) == 1
        go.set()
        eventually(lambda: len(mail.mails) == 2)
    assert office.states() == ["sent"]
    assert office.rows()[0].doubts == 1


def test_a_no_that_a_frozen_sender_hears_changes_nothing_once_another_has_sent_it(office, mail):
    office.mail_channel(mail)
    office.tell("ops")
    frozen, go = threading.Event(), threading.Event()

    def send(*_):
        frozen.set()
        assert go.wait(30)
        raise NotSent(SendResult.REFUSED, "no")

    with office.sending(send_functions={"smtp": send}) as former:
        assert frozen.wait(30)
        with office.sending():
            eventually(lambda: office.later(60.0) or office.states() == ["sent"])
            go.set()
            eventually(lambda: former._mine == set())
            office.later()
            former._news.set()
    assert (office.states(), len(mail.mails)) == (["sent"], 1)


@both_databases
def test_of_two_senders_at_a_time_one_sends_each_mail(office, mail):
    office.mail_channel(mail)
    for each in range(10):
        office.tell("ops", cause=str(each))
    first, second = office.sender(), office.sender()
    threads = [threading.Thread(target=_ignoring_newer, args=(each,), name="sender") for each in (first, second)]
    for each in threads:
        each.start()
    try:
        eventually(lambda: office.later(60.0) or office.states() == ["sent"] * 10)
    finally:
        for each in (first, second):
            each.stop()
        for each in threads:
            each.join()
    assert len({each["Message-ID"] for each in mail.mails}) == 10
    assert len(mail.mails) <= 11


@both_databases
def test_a_sender_with_an_older_hold_does_not_begin(office, mail):
    office.mail_channel(mail)
    with office.sending(token=2):
        office.tell("ops", cause="first")
        office.until("sent")
        office.tell("ops", cause="second")
        with pytest.raises(NotOwner), office.database.write() as connection:
            office.sender(token=1)._sending.acquire(connection)
        office.until("sent", "sent")
    assert len(mail.mails) == 2


def test_what_a_slow_channel_has_in_hand_is_no_stray_of_its_own_sender(office, mail, hook):
    office.mail_channel(mail)
    office.hook_channel(hook)
    office.tell("ops", "chat")
    slow, go = threading.Event(), threading.Event()

    def send(*_):
        slow.set()
        assert go.wait(30)
        return ""

    with office.sending(send_functions={"smtp": send, "webhook": lambda *_: ""}):
        assert slow.wait(30)
        office.until("sending", "sent")
        with office.database.write() as connection:  # what another one had in hand when it died
            connection.execute(
                sa.update(delivery).where(delivery.c.channel == "chat").values(state="sending", token=0, next_at=NOW)
            )
        eventually(lambda: office.rows()[1].doubts == 1)
        assert (office.rows()[0].state, office.rows()[0].doubts) == ("sending", 0)
        go.set()
        eventually(lambda: office.states()[0] == "sent")


def test_nothing_is_begun_once_the_hold_is_not_certain(office, mail):
    office.mail_channel(mail)
    office.tell("ops")
    left = [0.0]
    looks = itertools.count()
    with office.sending(remaining_s=lambda: next(looks) and left[0]):
        eventually(lambda: next(looks) > 20)
        assert office.states() == ["pending"]
        left[0] = 10.0
        office.until("sent")


def test_a_delivery_that_was_put_off_meanwhile_is_not_taken(office, mail):
    office.mail_channel(mail)
    office.tell("ops")
    sending = office.sender()._sending
    with office.database.write() as connection:
        sending.acquire(connection)
        connection.execute(sa.update(delivery).values(next_at=NOW + 60.0))  # by another sender, after we had looked
        assert sending.claim(connection, office.rows()[0].id, NOW) is None
        assert sending.claim(connection, office.rows()[0].id, NOW + 60.0) is not None


def test_a_channel_that_refuses_one_alert_is_left_alone_with_the_others_for_a_while(office, hook):
    hook.answer = 500
    office.hook_channel(hook)
    for each in range(3):
        office.tell("chat", cause=str(each))
    with office.sending() as sender:
        eventually(lambda: office.rows()[0].tries == 1)
        for _ in range(5):
            sender._news.set()
            time.sleep(0.02)
        assert len(hook.posts) == 1
        hook.answer = 200
        eventually(lambda: office.later(60.0) or office.states() == ["sent"] * 3)
    assert len(hook.posts) == 4


def test_a_channel_rests_from_the_time_of_its_answer_on(office, hook, monkeypatch):
    hook.answer = 500
    office.hook_channel(hook)
    office.tell("chat")
    write = AlertSender._record_result

    def slowly(sender, *args):
        write(sender, *args)
        office.later(60.0)  # the time that writing has taken

    monkeypatch.setattr(AlertSender, "_record_result", slowly)
    with office.sending():
        eventually(lambda: office.rows()[0].tries >= 2)


def test_a_rest_that_begins_during_a_look_is_kept(office):
    sender = office.sender()
    resting = threading.Thread(target=sender._pause_channel, args=("chat", NOW))

    class Read(dict):
        def items(self):
            found = list(super().items())
            resting.start()
            resting.join(0.1)  # it has to wait for the look
            return found

    sender._rests = Read()
    sender._start_due()
    resting.join()
    assert list(sender._rests) == ["chat"]


def _ignoring_newer(sender):
    with suppress(NotOwner):
        sender.run()


def test_an_answer_that_the_database_did_not_take_is_written_once_it_does(office, mail, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "latchwork_workflows")
    office.mail_channel(mail)
    office.tell("ops")
    answer, lost = alerts.SenderLease.record_result, []

    def failing(self, *args):
        if len(lost) < 2:
            lost.append(1)
            raise DatabaseUnavailable("away")
        return answer(self, *args)

    monkeypatch.setattr(alerts.SenderLease, "record_result", failing)
    with office.sending():
        office.until("sent")
        eventually(lambda: "alerts by all channels are sent again" in caplog.text)
    assert (len(mail.mails), len(lost)) == (1, 2)
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.getMessage().partition(":")[0] for each in warnings] == [
        "the result of alert delivery 1 is written later"
    ]


# Channels in trouble


def test_a_channel_that_hangs_holds_up_no_other_and_is_not_asked_a_third_time(office, mail, hook):
    hook.answer = "hang"
    office.hook_channel(hook, timeout_s=0.5)
    office.mail_channel(mail)
    office.tell("chat", "ops")
    with office.sending():
        eventually(lambda: len(mail.mails) == 1)
        assert not hook.gate.is_set()
        eventually(lambda: office.later(60.0) or sorted(office.states()) == ["sent", "unsure"], 30.0)
    assert office.rows()[0].doubts == 2
    assert len(hook.posts) <= 2  # less where this machine took longer than that to send one
    assert "did not answer within 0.5 s" in office.rows()[0].error


@pytest.mark.parametrize("fault", ["hang", "slow"])
def test_a_mail_server_that_says_nothing_or_too_slowly_is_left_in_time_and_asked_again(office, mail, fault):
    mail.fault = fault
    office.mail_channel(mail, timeout_s=0.5)
    office.tell("ops")
    with office.sending():
        eventually(lambda: office.rows()[0].tries == 1)
        mail.fault = ""
        office.give_time()
        eventually(lambda: office.later(60.0) or office.states() == ["sent"])
    assert len(mail.mails) == 1


@pytest.mark.parametrize("fault", ["hang at the end", "drop at the end"])
def test_a_mail_whose_answer_is_missing_is_sent_once_more(office, mail, fault):
    mail.fault = fault
    office.mail_channel(mail, timeout_s=0.5)
    office.tell("ops")
    with office.sending():
        office.until_doubted()
        mail.fault = ""
        office.give_time()
        eventually(lambda: office.later(60.0) or office.states() == ["sent"])
    assert len(mail.mails) == 2


def test_a_channel_that_refuses_is_asked_again_with_growing_waits_and_given_up_at_last(office, hook):
    hook.answer = 500
    office.hook_channel(hook)
    office.tell("chat")
    waits = []
    with office.sending():
        for tries in range(1, 9):
            row = eventually(lambda tries=tries: office.rows()[0].tries == tries and office.rows()[0])
            if row.next_at is not None:
                waits.append(row.next_at - office.now)
                office.now = row.next_at + 60.0  # the channel's rest is over as well
        (row,) = office.until("failed")
    assert len(hook.posts) == 8
    assert waits == [15.0 * 2**each for each in range(7)]
    assert row.error.startswith("it answered 500")


@pytest.mark.parametrize("answer", [301, 302, 307, 308, 400, 401, 404])
def test_a_webhook_that_redirects_or_rejects_is_asked_once(office, hook, answer):
    with running(HookServer()) as elsewhere:
        hook.answer, hook.headers = answer, {"Location": f"http://127.0.0.1:{elsewhere.port}/"}
        office.hook_channel(hook)
        office.tell("chat")
        with office.sending():
            office.until("failed")
        assert (len(hook.posts), elsewhere.posts) == (1, [])


def test_a_mail_server_that_is_not_there_is_asked_again(office, mail):
    with running(MailServer()) as gone:
        port = gone.port
    office.mail_channel(mail, port=port)
    office.tell("ops")
    with office.sending():
        eventually(lambda: office.rows()[0].tries == 1)
    assert office.states() == ["pending"]
    assert "refused" in office.rows()[0].error.lower()


def test_who_is_refused_keeps_no_other_recipient_from_the_mail_and_is_named(office, mail):
    mail.refused = {"b@example.org"}
    office.mail_channel(mail, to=["a@example.org", "b@example.org"])
    office.tell("ops")
    with office.sending():
        (row,) = office.until("sent")
    assert mail.envelopes == [["a@example.org"]]
    assert row.error == "1 recipient refused: b@example.org (550 nobody of this name)"


def test_an_alert_that_cannot_be_made_into_a_message_holds_up_no_other(office, mail):
    office.mail_channel(mail)
    office.tell("ops", cause="1", failed=[17])
    office.tell("ops", cause="2")
    with office.sending():
        rows = office.until("failed", "sent")
    assert rows[0].error.startswith("its message cannot be built: AttributeError")


def test_a_channel_that_is_missing_is_waited_for_and_one_that_is_switched_off_is_not(office, mail):
    office.tell("ops", "off")
    office.mail_channel(mail, name="off")
    with office.database.write() as connection:
        connection.execute(sa.update(channel).values(enabled=False))
    with office.sending():
        eventually(lambda: office.rows()[0].tries == 1)
        assert "there is no channel 'ops'" in office.rows()[0].error
        office.mail_channel(mail)
        office.later()
        office.until("sent", "failed")
    assert office.rows()[1].error == "the channel is disabled"


# Hostile contents


def test_a_secret_that_a_server_repeats_is_masked_in_what_is_kept(office, mail):
    with running(MailServer(user="flows", password="hunter2")) as strict:
        office.mail_channel(strict, user="flows", password="${secret:MAIL}")
        office.tell("ops")
        with office.sending(secrets={"LATCHWORK_CHANNEL_SECRET_MAIL": "wrong-one"}):
            row = eventually(lambda: office.rows()[0].tries and office.rows()[0])
        assert "535 no, not ***" in row.error
        office.later()
        with office.sending(secrets={"LATCHWORK_CHANNEL_SECRET_MAIL": "hunter2"}):
            office.until("sent")
    assert len(strict.mails) == 1


def test_a_secret_that_is_missing_is_said_and_waited_for(office, hook):
    office.hook_channel(hook, path="/${secret:HOOK}")
    office.tell("chat")
    with office.sending():
        row = eventually(lambda: office.rows()[0].tries and office.rows()[0])
    assert "LATCHWORK_CHANNEL_SECRET_HOOK" in row.error
    assert hook.posts == []


@pytest.mark.parametrize("evil", ["x\r\nBcc: all@example.org", "x\nSubject: other", "\x1b[2Jx", "\ud800", "\u202egpj"])
def test_names_and_errors_of_tasks_add_no_header_and_move_no_cursor(office, mail, evil):
    office.mail_channel(mail)
    office.tell("ops", kind="timeout", task=evil.replace("\ud800", "a"), workflow=evil, error=evil)
    with office.sending():
        office.until("sent")
    (got,) = mail.mails
    assert "Bcc" not in got
    assert len(got.get_all("Subject")) == 1
    assert all(char.isprintable() or char == "\n" for char in got.get_content().replace("\r\n", "\n"))
    assert mail.envelopes == [["a@example.org"]]


def test_a_secret_of_several_lines_adds_no_header_to_a_webhook(office, hook):
    office.hook_channel(hook, headers={"Authorization": "Bearer ${secret:T}"})
    office.tell("chat")
    with office.sending(secrets={"LATCHWORK_CHANNEL_SECRET_T": "x\r\nX-Evil: 1"}):
        office.until("failed")
    assert hook.posts == []


@pytest.mark.slow
def test_a_mail_is_short_however_much_its_tasks_have_said(office, mail):
    office.mail_channel(mail)
    office.tell("ops", failed=[{"name": f"t{each}", "error": "x" * 100_000} for each in range(2000)])
    with office.sending():
        office.until("sent")
    (got,) = mail.mails
    assert len(got.get_content()) <= 70_000


def test_a_line_that_is_a_dot_ends_no_mail(office, mail):
    office.mail_channel(mail)
    office.tell("ops", failed=[{"name": ".", "error": "."}], error=".\r\n.\r\nMAIL FROM:<x@example.org>")
    with office.sending():
        office.until("sent")
    assert len(mail.mails) == 1


def test_alerts_of_a_database_are_read_by_their_columns(office):
    office.tell("ops")
    with office.database.read() as connection:
        assert connection.execute(sa.select(alert.c.kind)).scalar_one() == "failure"


@pytest.mark.parametrize(("rows", "files"), [(2, 0), (20_000, 1)])
def test_rows_of_a_query_come_as_a_table_and_above_64_kb_as_a_file(office, mail, tmp_path, rows, files):
    logs = open_logs(tmp_path / "logs")
    file = logs.create("1/1/1/1.1.rows")
    text = "id,name\r\n" + "".join(f"{each},ä{each}\r\n" for each in range(rows))
    file.append(text.encode())
    file.end()
    file.close()
    office.mail_channel(mail)
    said = {"mail": {"to": ["boss@example.org"], "subject": "Orders"}, "log_ref": "1/1/1/1.1.rows", "count_rows": rows}
    office.tell("ops", kind="rows", task="orders", **said)
    with office.sending(logs=logs):
        office.until("sent")
    (got,) = mail.mails
    assert (got["Subject"], mail.envelopes) == ("Orders", [["boss@example.org"]])
    attached = list(got.iter_attachments())
    assert len(attached) == files
    if files:
        assert attached[0].get_filename() == "orders.csv"
        assert attached[0].get_content().replace("\r\n", "\n") == text.replace("\r\n", "\n")
    else:
        assert "1   ä1" in got.get_body().get_content()
