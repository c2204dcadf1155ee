"""Sends JSON by POST. A status of 200 to 299 means accepted. Redirects are not followed.

X-Latchwork-Delivery: 17.1                 the same for each try of a delivery
X-Latchwork-Timestamp: 1764000000
X-Latchwork-Signature: sha256=<hex>        HMAC-SHA256 of "<timestamp>.<body>", if the channel has a key
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
from urllib.parse import urlsplit

from latchwork.spi import reason
from latchwork_workflows.alerts.channels import WebhookOptions, check_url
from latchwork_workflows.alerts.delivery import NotSent, SocketDeadline, load_client_tls_context
from latchwork_workflows.alerts.messages import Message, format_as_line
from latchwork_workflows.state.alerts import SendResult

#: Maximum number of bytes of an answer that are read.
_MAX_ANSWER = 2_000
_LATER = frozenset({408, 409, 425, 429})


def send(message: Message, options: WebhookOptions, at: float) -> str:
    """Send a message as JSON by HTTP POST.

    Args:
        message: The message.
        options: The options of the channel.
        at: The time for the signature, in seconds since the epoch.
    Returns:
        An empty string, because a URL has no separate recipients that it could refuse.
    Raises:
        NotSent: The server did not accept the message, or the result is unknown.
        ValueError: The URL is invalid after its secrets were filled in.
    """
    check_url(options.url)
    body = json.dumps({**message.body, "text": message.text, "subject": message.subject}, ensure_ascii=True).encode()
    deadline = SocketDeadline(options.timeout_s)
    with deadline.enforce():
        try:
            connection = _connect(options, deadline)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotSent(SendResult.REFUSED, f"the server cannot be reached: {reason(error)}") from error
        try:
            return _post(connection, message, options, body, at)
        except (OSError, http.client.HTTPException) as error:
            is_late = deadline.is_over or isinstance(error, TimeoutError)  # the timeout of the socket may end first
            late = f"it did not answer within {options.timeout_s:g} s" if is_late else reason(error)
            raise NotSent(SendResult.DOUBT, f"it is not known whether it was accepted: {late}") from error
        finally:
            connection.close()


def _connect(options: WebhookOptions, deadline: SocketDeadline) -> http.client.HTTPConnection:
    parts = urlsplit(options.url)
    host = parts.hostname or ""
    made: http.client.HTTPConnection
    if parts.scheme == "https":
        tls = load_client_tls_context(options.ca_file)
        made = http.client.HTTPSConnection(host, parts.port, timeout=options.timeout_s, context=tls)
    else:
        made = http.client.HTTPConnection(host, parts.port, timeout=options.timeout_s)
    made.connect()
    deadline.set_socket(made.sock)
    return made


def _post(
    connection: http.client.HTTPConnection, message: Message, options: WebhookOptions, body: bytes, at: float
) -> str:
    parts = urlsplit(options.url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection.request("POST", path, body, {**options.headers, **_headers(message, options, body, at)})
    answer = connection.getresponse()
    said = format_as_line(answer.read(_MAX_ANSWER).decode("utf-8", "replace"))
    if 200 <= answer.status < 300:
        return ""
    if 300 <= answer.status < 400:
        where = format_as_line(answer.headers.get("Location", "nowhere"))
        raise NotSent(
            SendResult.REJECTED, f"it answered {answer.status}, a redirect to {where}; use that URL in the channel"
        )
    again = answer.status >= 500 or answer.status in _LATER
    raise NotSent(SendResult.REFUSED if again else SendResult.REJECTED, f"it answered {answer.status}: {said}")


def _headers(message: Message, options: WebhookOptions, body: bytes, at: float) -> dict[str, str]:
    timestamp = str(int(at))
    made = {
        "Content-Type": "application/json",
        "User-Agent": "latchwork",
        "Connection": "close",
        "X-Latchwork-Delivery": message.id.strip("<>").partition("@")[0],
        "X-Latchwork-Timestamp": timestamp,
    }
    if options.signing_key:
        signed = hmac.new(options.signing_key.encode(), f"{timestamp}.".encode() + body, hashlib.sha256)
        made["X-Latchwork-Signature"] = f"sha256={signed.hexdigest()}"
    return made
