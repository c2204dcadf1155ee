"""Options of alert channels and their validation. They contain no secrets. Pure.

A channel refers to a secret by name, as in ``${secret:SMTP_PASSWORD}``. Only the machines of masters know its value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from latchwork.errors import LatchworkError
from latchwork.spi import printable
from latchwork_workflows.model.definition import NAME_PATTERN
from latchwork_workflows.model.templates import SECRET

_REFERENCE = re.compile(r"\$\{secret:([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})\}")
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_SENDER = re.compile(r"(?:([^<>@\r\n\"]{0,200}?)\s*<([^<>\s]+)>|([^<>\s]+))")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HOST = r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$|^\[?[0-9A-Fa-f:.]{2,45}\]?$"
#: Headers that a webhook cannot set: they are set by Latchwork or by the connection.
_OURS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection"})
Line: TypeAlias = Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]


class ChannelInvalid(LatchworkError, ValueError):
    """A channel is invalid.

    Attributes:
        problems: Path and message of each problem.
    """

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {why}" if path else why for path, why in problems))
        self.problems = problems


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _address(value: str) -> str:
    if not _ADDRESS.fullmatch(value):
        raise ValueError(f"{printable(value[:100])!r} is not an email address; write one such as ops@example.org")
    return value


def _secret(value: str) -> str:
    if value and not _REFERENCE.fullmatch(value):
        raise ValueError("secrets are not stored here; refer to one as ${secret:NAME}")
    return value


class SmtpOptions(_Options):
    """Options of a mail server.

    Attributes:
        host: Host name of the server.
        sender: Sender: an address, or ``Workflows <flows@example.org>``.
        to: Addresses of the recipients. Mail with rows has its own recipients.
        security: ``starttls``, ``tls`` from the first byte, or ``none``.
        port: Default: 587, 465 or 25, depending on ``security``.
        user: User to sign in as. Empty: do not sign in.
        password: Password of the user, ``${secret:NAME}``.
        ca_file: Certificates to trust instead of those of the machine, a file on the machine of each master.
        timeout_s: Time limit for one mail, in seconds.
        link: URL of the pages, for links in messages.
    """

    host: Annotated[str, StringConstraints(pattern=_HOST)]
    sender: Line
    to: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    security: Literal["starttls", "tls", "none"] = "starttls"
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    user: Line = ""
    password: Line = ""
    ca_file: Line = ""
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 30.0
    link: Line = ""

    @field_validator("to")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_address(each) for each in value)

    @field_validator("sender")
    @classmethod
    def _from(cls, value: str) -> str:
        parse_sender(value)
        return value

    @field_validator("password")
    @classmethod
    def _no_password(cls, value: str) -> str:
        return _secret(value)


class WebhookOptions(_Options):
    """Options of a URL that accepts JSON by POST.

    Attributes:
        url: ``https://`` or ``http://``. Refer to a token by name: ``https://hooks.example.org/${secret:HOOK}``.
        headers: Additional headers. Refer to a token by name.
        signing_key: ``${secret:NAME}``. Signs messages with HMAC-SHA256 of the time and the body.
        ca_file: As for mail.
        timeout_s: Time limit for one message, in seconds.
        link: As for mail.
    """

    url: Line
    headers: Annotated[dict[str, Line], Field(max_length=20)] = Field(default_factory=dict)
    signing_key: Line = ""
    ca_file: Line = ""
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 15.0
    link: Line = ""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        check_url(_REFERENCE.sub("x", value))
        return value

    @field_validator("headers")
    @classmethod
    def _headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, each in value.items():
            if not _HEADER.fullmatch(name) or name.lower() in _OURS or name.lower().startswith("x-latchwork-"):
                raise ValueError(f"{printable(name[:100])!r} cannot be set; use another header")
            if name.lower() == "authorization" and f"${{{SECRET}" not in each:
                raise ValueError("Authorization must be a secret, as in 'Bearer ${secret:NAME}'")
        return value

    @field_validator("signing_key")
    @classmethod
    def _no_key(cls, value: str) -> str:
        return _secret(value)


class AppriseOptions(_Options):
    """Options of any service that Apprise supports. Needs ``latchwork[alerts]`` on the machines of masters.

    Attributes:
        url: An Apprise URL. Refer to its tokens by name: ``slack://${secret:SLACK}``.
        link: As for mail.
    """

    url: Line
    link: Line = ""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        if "://" not in _REFERENCE.sub("x://x", value) or f"${{{SECRET}" not in value:
            raise ValueError(
                "its URLs contain tokens; use secrets, as in 'slack://${secret:SLACK}', or a secret for the whole URL"
            )
        return value


Options: TypeAlias = SmtpOptions | WebhookOptions | AppriseOptions
#: Options by kind of channel.
KINDS: dict[str, type[SmtpOptions | WebhookOptions | AppriseOptions]] = {
    "smtp": SmtpOptions,
    "webhook": WebhookOptions,
    "apprise": AppriseOptions,
}


def validate_channel(name: str, kind: str, options: Mapping[str, Any]) -> Options:
    """Validate the options of an alert channel, and return them as plain values.

    Args:
        name: The name of the channel.
        kind: ``smtp``, ``webhook`` or ``apprise``.
        options: The options.
    Raises:
        ChannelInvalid: Contains every problem that was found.
    """
    problems = []
    if not re.fullmatch(NAME_PATTERN, name):
        problems.append(
            ("name", f"{printable(name[:60])!r} is not a valid name; use up to 100 letters, digits, '_', '-', '.'")
        )
    if kind not in KINDS:
        raise ChannelInvalid([*problems, ("kind", f"{printable(kind[:60])!r} is not one of {', '.join(KINDS)}")])
    try:
        made = KINDS[kind].model_validate(options)
    except ValidationError as error:
        problems += [_problem(each) for each in error.errors(include_url=False)]
        raise ChannelInvalid(problems) from None
    if problems:
        raise ChannelInvalid(problems)
    return made


def _problem(error: Mapping[str, Any]) -> tuple[str, str]:
    path = "options" + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in error["loc"])
    words = {"extra_forbidden": "there is no such option", "missing": "this is required"}
    text = str(error["msg"]).removeprefix("Value error, ")
    return path, words.get(error["type"], text[:1].lower() + text[1:])


def parse_sender(text: str) -> tuple[str, str]:
    """Split a sender such as ``Workflows <flows@example.org>`` into display name and address.

    Raises:
        ValueError: The text is neither such a sender nor an address.
    """
    found = _SENDER.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{printable(text[:100])!r} is not a valid sender; write 'flows@example.org' or 'Name <...>'")
    return (found.group(1) or "").strip(), _address(found.group(2) or found.group(3))


def check_url(url: str) -> None:
    """Check that a URL is a plain HTTP address.

    Raises:
        ValueError: It is not.
    """
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_plain = False
    if not is_plain or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("write an address such as https://hooks.example.org/alerts")
    if parts.username is not None:
        raise ValueError("a URL with a password is not stored; use headers, with 'Basic ${secret:NAME}'")


def resolve_secrets(options: Options, secret: Callable[[str], str]) -> tuple[Options, list[str]]:
    """Replace the references to secrets in channel options by their values.

    Returns:
        The options, and the values of the secrets, which must be masked in error messages.
    Raises:
        LatchworkError: A secret does not exist on this machine.
    """
    used: list[str] = []

    def one(found: re.Match[str]) -> str:
        value = secret(found.group(1))
        used.append(value)
        return value

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return _REFERENCE.sub(one, value)
        if isinstance(value, Mapping):
            return {name: walk(each) for name, each in value.items()}
        return tuple(map(walk, value)) if isinstance(value, tuple) else value

    made = options.model_copy(update={name: walk(each) for name, each in options.__dict__.items()})
    return made, used


def list_secret_names(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the secrets that the stored options of a channel use, sorted."""
    return sorted(set(_REFERENCE.findall(str(dict(options)))))
