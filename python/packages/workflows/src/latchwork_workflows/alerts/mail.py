"""Sends mail by SMTP, step by step. An error before the message data is a failure. A lost reply after it is unknown."""

from __future__ import annotations

import re
import smtplib
import socket
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as POLICY
from email.utils import formatdate

from latchwork.spi import counted, reason
from latchwork_workflows.alerts.channels import SmtpOptions, sender_of
from latchwork_workflows.alerts.delivery import Deadline, NotSent, tls_of
from latchwork_workflows.alerts.messages import Message, line
from latchwork_workflows.state.alerts import Answer

_PORTS = {"starttls": 587, "tls": 465, "none": 25}


def mail_of(message: Message, options: SmtpOptions, at: float) -> EmailMessage:
    """Return the mail for a message. All header values are single lines, and the library refuses any other.

    Raises:
        ValueError: It has no recipients.
    """
    to = message.to or options.to
    if not to:
        raise ValueError("the channel has no addresses in 'to', and neither has this alert")
    name, address = sender_of(options.sender)
    made = EmailMessage(policy=POLICY)
    made["Subject"] = message.subject
    made["From"] = Address(name, addr_spec=address)
    made["To"] = [Address(addr_spec=each) for each in to]
    made["Date"] = formatdate(at)
    made["Message-ID"] = message.id
    made["Auto-Submitted"] = "auto-generated"
    made.set_content(message.text)
    for file, content in message.files:
        kind = "csv" if file.endswith(".csv") else "plain"
        made.add_attachment(content, maintype="text", subtype=kind, filename=file, params={"charset": "utf-8"})
    return made


def send(message: Message, options: SmtpOptions, at: float) -> str:
    """Send a message. Return the refused recipients as text, empty if all accepted it.

    Raises:
        NotSent: No recipient got it, or the result is unknown.
        ValueError: The message cannot be sent.
    """
    mail = mail_of(message, options, at)
    data = mail.as_bytes()
    deadline = Deadline(options.timeout_s)
    with deadline.running():
        try:
            with _connected(options, deadline) as server:
                return _sent(server, mail, data, options)
        except NotSent:
            raise
        except (smtplib.SMTPException, OSError, ValueError) as error:
            late = f"it took longer than {options.timeout_s:g} s: " if deadline.is_over else ""
            raise NotSent(Answer.REFUSED, f"{late}{_words(error)}") from error


class _Quiet(smtplib.SMTP):
    """Cuts its socket at the deadline. Closes without QUIT, so that it never waits for a hanging server."""

    deadline: Deadline

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        made: socket.socket = super()._get_socket(host, port, timeout)  # type: ignore[misc]
        self.deadline.watch(made)
        return made


class _QuietTls(_Quiet, smtplib.SMTP_SSL):
    """Like ``_Quiet``, with TLS from the first byte."""


def _connected(options: SmtpOptions, deadline: Deadline) -> smtplib.SMTP:
    tls = None if options.security == "none" else tls_of(options.ca_file)
    made = {"deadline": deadline}
    where = (options.host.strip("[]"), options.port or _PORTS[options.security])
    server: smtplib.SMTP
    if options.security == "tls":
        server = type("Server", (_QuietTls,), made)(*where, timeout=options.timeout_s, context=tls)
    else:
        server = type("Server", (_Quiet,), made)(*where, timeout=options.timeout_s)
    try:
        server.ehlo_or_helo_if_needed()
        if options.security == "starttls":
            server.starttls(context=tls)
            deadline.watch(server.sock)
            server.ehlo()
        if options.user:
            server.login(options.user, options.password)
    except BaseException:
        server.close()
        raise
    return server


def _sent(server: smtplib.SMTP, mail: EmailMessage, data: bytes, options: SmtpOptions) -> str:
    _need(server.mail(sender_of(options.sender)[1]), "the sender")
    to = [each.addr_spec for each in mail["To"].addresses]
    answers = {each: server.rcpt(each) for each in to}
    refused = {each: answer for each, answer in answers.items() if answer[0] not in {250, 251}}
    if len(refused) == len(to):
        worst = min(answer[0] for answer in refused.values())
        first = next(iter(refused.values()))
        raise NotSent(_answer(worst), f"every recipient was refused: {_said(first)}")
    _need(server.docmd("DATA"), "the message", 354)
    try:  # from here on it may have been sent
        server.send(re.sub(rb"(?m)^\.", b"..", data) + (b"" if data.endswith(b"\r\n") else b"\r\n") + b".\r\n")
        answer = server.getreply()
    except (smtplib.SMTPException, OSError) as error:
        raise NotSent(Answer.DOUBT, f"the connection broke before the message was answered: {_words(error)}") from error
    _need(answer, "the message")
    who = ", ".join(f"{each} ({_said(answer)})" for each, answer in refused.items())
    return f"{counted(len(refused), 'recipient')} refused: {who}" if refused else ""


def _need(answer: tuple[int, bytes], what: str, code: int = 250) -> None:
    if answer[0] != code:
        raise NotSent(_answer(answer[0]), f"{what} was refused: {_said(answer)}")


def _answer(code: int) -> Answer:
    return Answer.REJECTED if 500 <= code < 600 else Answer.REFUSED


def _said(answer: tuple[int, bytes]) -> str:
    return line(f"{answer[0]} {answer[1].decode('utf-8', 'replace')}")


def _words(error: BaseException) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error if isinstance(error.smtp_error, bytes) else str(error.smtp_error).encode()
        return f"{type(error).__name__}: {_said((error.smtp_code, text))}"
    return reason(error)
