"""Alerts by what others wrote: Apprise, and a mail server that asks for TLS and an account."""

import logging
import socket
import ssl
import sys
from contextlib import contextmanager

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from latchwork_workflows.alerts import apprise_channel
from latchwork_workflows.alerts.channels import AppriseOptions
from latchwork_workflows.alerts.delivery import NotSent
from latchwork_workflows.alerts.messages import Message
from latchwork_workflows.state.alerts import SendResult
from patience import eventually
from workflows.mail_servers import HookServer, running
from workflows.test_alert_sending import Office

SECRETS = {"LATCHWORK_CHANNEL_SECRET_MAIL": "hunter2", "LATCHWORK_CHANNEL_SECRET_HOOK": "t0ken"}


@pytest.fixture
def database_url(tmp_path):
    return f"sqlite:///{tmp_path}/flows.db"


@pytest.fixture
def office(database):
    return Office(database)


@pytest.fixture
def hook():
    with running(HookServer()) as server:
        yield server


# Apprise


def test_a_service_that_apprise_knows_is_told(office, hook, caplog):
    caplog.set_level(logging.INFO)
    office.channel("chat", "apprise", url=f"json://127.0.0.1:{hook.port}/${{secret:HOOK}}")
    office.tell("chat")
    with office.sending(secrets=SECRETS):
        office.until("sent")
    ((path, _, _, body),) = hook.posts
    assert path.rstrip("/") == "/t0ken"
    assert body["title"] == "[latchwork] default.flow failed"
    assert "a: no such table" in body["message"]
    assert "t0ken" not in caplog.text


def test_a_no_of_a_service_is_kept_with_its_reason_and_tried_again(office, hook):
    hook.answer = 503
    office.channel("chat", "apprise", url=f"json://127.0.0.1:{hook.port}/${{secret:HOOK}}")
    office.tell("chat")
    with office.sending(secrets=SECRETS):
        row = eventually(lambda: office.rows()[0].tries == 1 and office.rows()[0])
        assert "the service rejected it: Failed to send" in row.error
        assert "503" in row.error
        assert "t0ken" not in row.error
        hook.answer = 200
        eventually(lambda: office.later(60.0) or office.states() == ["sent"])
    assert len(hook.posts) == 2


def test_a_url_that_apprise_does_not_know_is_given_up_at_once(office):
    office.channel("chat", "apprise", url="pigeon://${secret:HOOK}")
    office.tell("chat")
    with office.sending(secrets=SECRETS):
        (row,) = office.until("failed")
    assert "Apprise does not support this URL" in row.error
    assert "t0ken" not in row.error


def told_by(url):
    with pytest.raises(NotSent) as refused:
        apprise_channel.send(Message("subject", "text", "<1@x>", {}), AppriseOptions.model_construct(url=url), 0.0)
    return refused.value


def test_of_several_urls_none_is_told(hook):
    one = f"json://127.0.0.1:{hook.port}/"
    refused = told_by(f"{one}a, {one}b")
    assert (refused.answer, hook.posts) == (SendResult.REJECTED, [])
    assert "create one channel for each" in str(refused)


def test_where_apprise_is_missing_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    refused = told_by("json://127.0.0.1:9/")
    assert refused.answer is SendResult.REFUSED
    assert 'pip install "latchwork[alerts]"' in str(refused)


# Mail with TLS


class Letters:
    """What a mail server was sent, and how: ``passwords`` are those that it heard."""

    def __init__(self):
        self.mails, self.with_tls, self.passwords = [], [], []

    async def handle_DATA(self, server, session, envelope):  # noqa: N802
        self.mails.append(envelope)
        self.with_tls.append(session.ssl is not None)
        return "250 taken"

    def authenticate(self, server, session, envelope, mechanism, data):
        self.passwords.append((data.login, data.password))
        return AuthResult(success=(data.login, data.password) == (b"flows", b"hunter2"))


class _Posts(Controller):
    """Its certificates are for the name that it is asked for."""

    def _trigger_server(self):
        """It looks whether it takes connections; ordinarily it would speak TLS, without knowing the authority."""
        socket.create_connection(self.server.sockets[0].getsockname(), 5.0).close()


@contextmanager
def mail_server(letters, context, *, security):
    options = {"authenticator": letters.authenticate, "auth_required": True, "hostname": "127.0.0.1", "port": 0}
    if security == "tls":
        options |= {"ssl_context": context, "auth_require_tls": False}  # it knows of no TLS but its own
    elif context is not None:
        options |= {"tls_context": context, "require_starttls": True}
    server = _Posts(letters, **options)
    server.start()
    try:
        yield server.server.sockets[0].getsockname()[1]
    finally:
        server.stop()


def certified(authority, host="127.0.0.1"):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    return context


def mail_channel(office, port, authority, tmp_path, **options):
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    given = {"host": "127.0.0.1", "port": port, "sender": "flows@example.org", "to": ["a@example.org"]}
    account = {"user": "flows", "password": "${secret:MAIL}"}
    office.channel("ops", "smtp", **{**given, **account, "ca_file": f"{tmp_path}/ca.pem", "timeout_s": 10.0, **options})
    office.tell("ops")


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_goes_by_tls_with_an_account_to_a_server_that_asks_for_both(office, tmp_path, security):
    authority, letters = trustme.CA(), Letters()
    with mail_server(letters, certified(authority), security=security) as port:
        mail_channel(office, port, authority, tmp_path, security=security)
        with office.sending(secrets=SECRETS):
            office.until("sent")
    (mail,) = letters.mails
    assert mail.rcpt_tos == ["a@example.org"]
    assert b"a: no such table" in mail.content
    assert letters.passwords == [(b"flows", b"hunter2")]
    assert letters.with_tls == [security == "starttls"]  # the library's word for a session that began without


@pytest.mark.parametrize("security", ["starttls", "tls"])
@pytest.mark.parametrize("fault", ["of nobody we trust", "for another host"])
def test_a_server_with_a_certificate_of_another_hears_no_password_and_gets_no_mail(office, tmp_path, security, fault):
    ours, letters = trustme.CA(), Letters()
    theirs = certified(trustme.CA()) if fault == "of nobody we trust" else certified(ours, "mail.example.org")
    with mail_server(letters, theirs, security=security) as port:
        mail_channel(office, port, ours, tmp_path, security=security)
        with office.sending(secrets=SECRETS):
            row = eventually(lambda: office.rows()[0].tries and office.rows()[0])
    assert "certificate verify failed" in row.error.lower()
    assert (letters.mails, letters.passwords) == ([], [])


def test_a_server_that_offers_no_tls_hears_no_password(office, tmp_path):
    letters = Letters()
    with mail_server(letters, None, security="none") as port:
        mail_channel(office, port, trustme.CA(), tmp_path)
        with office.sending(secrets=SECRETS):
            row = eventually(lambda: office.rows()[0].tries and office.rows()[0])
    assert "STARTTLS" in row.error
    assert (letters.mails, letters.passwords) == ([], [])


def test_a_file_of_certificates_that_is_not_there_is_named(office, tmp_path):
    mail_channel(office, 1, trustme.CA(), tmp_path, ca_file="/no/such/ca.pem")
    with office.sending(secrets=SECRETS):
        row = eventually(lambda: office.rows()[0].tries and office.rows()[0])
    assert "/no/such/ca.pem" in row.error
