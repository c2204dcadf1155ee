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
from latchwork_workflows.alerts.channels import SmtpOptions, parse_sender
from latchwork_workflows.alerts.delivery import NotSent, SocketDeadline, load_client_tls_context
from latchwork_workflows.alerts.messages import Message, format_as_line
from latchwork_workflows.state.alerts import SendResult

_PORTS = {"starttls": 587, "tls": 465, "none": 25}


def build_mail(message: Message, options: SmtpOptions, at: float) -> EmailMessage:
    """Build the mail for an alert message. Header values are forced to a single line, so that they cannot add headers.

    Args:
        message: The message.
        options: The options of the channel.
        at: The date of the mail, in seconds since the epoch.
    Raises:
        ValueError: The mail has no recipients.
    """
    to = message.to or options.to
    if not to:
        raise ValueError("neither the channel nor this alert has addresses in 'to'")
    name, address = parse_sender(options.sender)
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
    """Send a message by SMTP.

    Args:
        message: The message.
        options: The options of the channel.
        at: The date of the mail, in seconds since the epoch.
    Returns:
        The refused recipients as text. Empty if the server accepted all of them.
    Raises:
        NotSent: No recipient was accepted, or the result is unknown.
        ValueError: The mail cannot be built.
    """
    mail = build_mail(message, options, at)
    data = mail.as_bytes()
    deadline = SocketDeadline(options.timeout_s)
    with deadline.enforce():
        try:
            with _connect(options, deadline) as server:
                return _send_mail(server, mail, data, options)
        except NotSent:
            raise
        except (smtplib.SMTPException, OSError, ValueError) as error:
            late = f"it took longer than {options.timeout_s:g} s: " if deadline.is_over else ""
            raise NotSent(SendResult.REFUSED, f"{late}{_error_text(error)}") from error


class _DeadlineSmtp(smtplib.SMTP):
    """Cuts its socket at the deadline. Closes without QUIT, so that it never waits for a hanging server."""

    deadline: SocketDeadline

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        made: socket.socket = super()._get_socket(host, port, timeout)  # type: ignore[misc]
        self.deadline.set_socket(made)
        return made


class _DeadlineSmtpTls(_DeadlineSmtp, smtplib.SMTP_SSL):
    """Like ``_DeadlineSmtp``, with TLS from the first byte."""


def _connect(options: SmtpOptions, deadline: SocketDeadline) -> smtplib.SMTP:
    tls = None if options.security == "none" else load_client_tls_context(options.ca_file)
    made = {"deadline": deadline}
    where = (options.host.strip("[]"), options.port or _PORTS[options.security])
    server: smtplib.SMTP
    if options.security == "tls":
        server = type("Server", (_DeadlineSmtpTls,), made)(*where, timeout=options.timeout_s, context=tls)
    else:
        server = type("Server", (_DeadlineSmtp,), made)(*where, timeout=options.timeout_s)
    try:
        server.ehlo_or_helo_if_needed()
        if options.security == "starttls":
            server.starttls(context=tls)
            deadline.set_socket(server.sock)
            server.ehlo()
        if options.user:
            server.login(options.user, options.password)
    except BaseException:
        server.close()
        raise
    return server


def _send_mail(server: smtplib.SMTP, mail: EmailMessage, data: bytes, options: SmtpOptions) -> str:
    _require_code(server.mail(parse_sender(options.sender)[1]), "the sender")
    to = [each.addr_spec for each in mail["To"].addresses]
    answers = {each: server.rcpt(each) for each in to}
    refused = {each: answer for each, answer in answers.items() if answer[0] not in {250, 251}}
    if len(refused) == len(to):
        worst = min(answer[0] for answer in refused.values())
        first = next(iter(refused.values()))
        raise NotSent(_answer(worst), f"every recipient was refused: {_reply_text(first)}")
    _require_code(server.docmd("DATA"), "the message", 354)
    try:  # from here on it may have been sent
        server.send(re.sub(rb"(?m)^\.", b"..", data) + (b"" if data.endswith(b"\r\n") else b"\r\n") + b".\r\n")
        answer = server.getreply()
    except (smtplib.SMTPException, OSError) as error:
        raise NotSent(
            SendResult.DOUBT, f"the connection was lost before the server accepted the message: {_error_text(error)}"
        ) from error
    _require_code(answer, "the message")
    who = ", ".join(f"{each} ({_reply_text(answer)})" for each, answer in refused.items())
    return f"{counted(len(refused), 'recipient')} refused: {who}" if refused else ""


def _require_code(answer: tuple[int, bytes], what: str, code: int = 250) -> None:
    if answer[0] != code:
        raise NotSent(_answer(answer[0]), f"{what} was refused: {_reply_text(answer)}")


def _answer(code: int) -> SendResult:
    return SendResult.REJECTED if 500 <= code < 600 else SendResult.REFUSED


def _reply_text(answer: tuple[int, bytes]) -> str:
    return format_as_line(f"{answer[0]} {answer[1].decode('utf-8', 'replace')}")


def _error_text(error: BaseException) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error if isinstance(error.smtp_error, bytes) else str(error.smtp_error).encode()
        return f"{type(error).__name__}: {_reply_text((error.smtp_code, text))}"
    return reason(error)
