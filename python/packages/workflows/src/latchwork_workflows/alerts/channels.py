"""Channels as people write them: what each kind takes, and that none of it is a secret. Pure.

A secret is named, ``${secret:SMTP_PASSWORD}``, in any text of a channel, and known to the masters' machines alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from latchwork.errors import LatchworkError
from latchwork.spi import printable
from latchwork_workflows.model.model import NAME_PATTERN
from latchwork_workflows.model.templates import SECRET

_REFERENCE = re.compile(r"\$\{secret:([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})\}")
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_SENDER = re.compile(r"(?:([^<>@\r\n\"]{0,200}?)\s*<([^<>\s]+)>|([^<>\s]+))")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HOST = r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$|^\[?[0-9A-Fa-f:.]{2,45}\]?$"
#: Headers of a webhook that are ours, or those of the connection.
_OURS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection"})
Line: TypeAlias = Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]


class ChannelInvalid(LatchworkError, ValueError):
    """A channel that cannot be used.

    Attributes:
        problems: each with its place and what is wrong.
    """

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {why}" if path else why for path, why in problems))
        self.problems = problems


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _address(value: str) -> str:
    if not _ADDRESS.fullmatch(value):
        raise ValueError(f"{printable(value[:100])!r} is no address of mail; write one such as ops@example.org")
    return value


def _secret(value: str) -> str:
    if value and not _REFERENCE.fullmatch(value):
        raise ValueError("a secret is named here and never written: ${secret:NAME}")
    return value


class SmtpOptions(_Options):
    """A mail server.

    Attributes:
        host: its name.
        sender: whom mail is from: an address, or ``Workflows <flows@example.org>``.
        to: addresses of those who get it; mail of rows has its own.
        security: ``starttls``, ``tls`` from the first byte, or ``none``.
        port: default 587, 465 or 25 by the security.
        user: to sign in as; empty: nobody.
        password: of the user, ``${secret:NAME}``.
        ca_file: certificates to trust instead of the machine's, a file of each master's machine.
        timeout_s: seconds that one mail may take.
        link: address of the pages, for links in messages.
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
        sender_of(value)
        return value

    @field_validator("password")
    @classmethod
    def _no_password(cls, value: str) -> str:
        return _secret(value)


class WebhookOptions(_Options):
    """An address that takes JSON by POST.

    Attributes:
        url: ``https://`` or ``http://``; a token in it is named: ``https://hooks.example.org/${secret:HOOK}``.
        headers: more of them, by name; a token is named.
        signing_key: ``${secret:NAME}``: messages are signed, by HMAC-SHA256 of the time and the body.
        ca_file: as of mail.
        timeout_s: seconds that one message may take.
        link: as of mail.
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
                raise ValueError(f"{printable(name[:100])!r} cannot be set; give a header of your own")
            if name.lower() == "authorization" and f"${{{SECRET}" not in each:
                raise ValueError("Authorization is a secret: name it, as in 'Bearer ${secret:NAME}'")
        return value

    @field_validator("signing_key")
    @classmethod
    def _no_key(cls, value: str) -> str:
        return _secret(value)


class AppriseOptions(_Options):
    """Any service that Apprise knows; needs ``latchwork[alerts]`` where masters run.

    Attributes:
        url: one of Apprise's; the tokens in it are named: ``slack://${secret:SLACK}``.
        link: as of mail.
    """

    url: Line
    link: Line = ""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        if "://" not in _REFERENCE.sub("x://x", value) or f"${{{SECRET}" not in value:
            raise ValueError("its URLs have tokens: name them, as in 'slack://${secret:SLACK}', or all of it")
        return value


Options: TypeAlias = SmtpOptions | WebhookOptions | AppriseOptions
#: The kinds of channels, and what each takes.
KINDS: dict[str, type[SmtpOptions | WebhookOptions | AppriseOptions]] = {
    "smtp": SmtpOptions,
    "webhook": WebhookOptions,
    "apprise": AppriseOptions,
}


def checked_channel(name: str, kind: str, options: Mapping[str, Any]) -> Options:
    """What a channel says.

    Raises:
        ChannelInvalid: with every problem.
    """
    problems = []
    if not re.fullmatch(NAME_PATTERN, name):
        problems.append(("name", f"{printable(name[:60])!r} is no name; use up to 100 letters, digits, '_', '-', '.'"))
    if kind not in KINDS:
        raise ChannelInvalid([*problems, ("kind", f"{printable(kind[:60])!r} is none of {', '.join(KINDS)}")])
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
    words = {"extra_forbidden": "there is no such option", "missing": "this has to be given"}
    text = str(error["msg"]).removeprefix("Value error, ")
    return path, words.get(error["type"], text[:1].lower() + text[1:])


def sender_of(text: str) -> tuple[str, str]:
    """The display name and the address of ``Workflows <flows@example.org>``.

    Raises:
        ValueError: it is neither that nor an address.
    """
    found = _SENDER.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{printable(text[:100])!r} is no sender; write 'flows@example.org' or 'Name <...>'")
    return (found.group(1) or "").strip(), _address(found.group(2) or found.group(3))


def check_url(url: str) -> None:
    """Refuse what is no plain address of HTTP. Raises ValueError."""
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_plain = False
    if not is_plain or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("write an address such as https://hooks.example.org/alerts")
    if parts.username is not None:
        raise ValueError("a password in an address is not kept: use headers, with 'Basic ${secret:NAME}'")


def filled(options: Options, secret: Callable[[str], str]) -> tuple[Options, list[str]]:
    """The options with their secrets in place, and these secrets, to be masked in what is told of it.

    Raises:
        LatchworkError: there is no secret of a name.
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


def secrets_of(options: Mapping[str, Any]) -> list[str]:
    """The names of the secrets that stored options refer to, sorted."""
    return sorted(set(_REFERENCE.findall(str(dict(options)))))
