"""Conversion of gRPC's errors to latchwork's errors.

For a failed call, ``classify_outcome`` returns whether it may have been applied, and ``translate_error`` returns the
error.
"""

from __future__ import annotations

import enum

import grpc

from latchwork.errors import (
    AuthenticationFailed,
    LatchworkError,
    PermissionDenied,
    SessionLost,
    StoreFull,
    TransactionTooLarge,
    Unavailable,
)

_Code = grpc.StatusCode
#: gRPC's words when no connection could be picked for the call: it never left this process.
_NEVER_SENT = ("failed to connect to all addresses", "empty address list", "DNS resolution failed", "errors resolving")
#: gRPC's words for an attempt to connect that failed, and how far it came.
_CONNECT_PHASES = (
    ("resol", "the name lookup"),
    ("connect to remote host", "the TCP connection"),
    ("tcp handshaker", "the TCP connection"),
    ("andshake", "the TLS handshake"),
    ("SETTINGS", "the first answer"),
)
#: gRPC's words for an answer that is larger than the channel takes: converted takes any, a user's client 4 MiB.
OVERSIZED_ANSWER = "Received message larger than max"
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old", "invalid auth management")
#: A member that is up but cannot serve: another member may.
_MEMBER_TROUBLE = ("no leader", "timed out", "not healthy", "stopped", "Deadline")


class CallOutcome(enum.Enum):
    """The outcome of a failed call: the server refused it, it was never sent, or the outcome is unknown."""

    REFUSED = "the server said no: it was not applied and never will be"
    STALE_TOKEN = "refused for its token only: with a new one it may succeed"  # noqa: S105 - no secret
    NEVER_SENT = "it never left this process"
    UNKNOWN = "it may have been applied, or be yet"


_DEFINITE = {
    _Code.INVALID_ARGUMENT,
    _Code.NOT_FOUND,
    _Code.ALREADY_EXISTS,
    _Code.PERMISSION_DENIED,
    _Code.RESOURCE_EXHAUSTED,
    _Code.FAILED_PRECONDITION,
    _Code.OUT_OF_RANGE,
    _Code.UNIMPLEMENTED,
    _Code.UNAUTHENTICATED,
}


def get_message(error: grpc.RpcError) -> str:
    """Return the message of the server or of gRPC in one line."""
    found = error.details() if hasattr(error, "details") else None
    return " ".join((found or str(error)).split())[:300]


def get_status_code(error: grpc.RpcError) -> grpc.StatusCode:
    """Return the status code of a failed call."""
    found = error.code() if hasattr(error, "code") else None
    return found if isinstance(found, grpc.StatusCode) else _Code.UNKNOWN


def classify_outcome(error: grpc.RpcError) -> CallOutcome:
    """Return whether a failed call was refused, was never sent, or has an unknown outcome, judging by its gRPC
    error.
    """
    message = get_message(error)
    if any(words in message for words in _STALE_TOKEN):
        return CallOutcome.STALE_TOKEN
    if get_status_code(error) in _DEFINITE:
        return CallOutcome.REFUSED
    if get_status_code(error) is _Code.UNAVAILABLE and any(words in message for words in _NEVER_SENT):
        return CallOutcome.NEVER_SENT
    return CallOutcome.UNKNOWN


def find_connect_phase(message: str) -> str:
    """Return the phase in which an attempt to connect failed, such as the TLS handshake, judging by gRPC's message.
    Return "" if unknown.

    Args:
        message: The message.
    """
    return next((phase for words, phase in _CONNECT_PHASES if words in message), "")


def is_member_failing(error: grpc.RpcError) -> bool:
    """Return whether the client should try another member of the cluster, although it is connected to this one."""
    return get_status_code(error) is _Code.DEADLINE_EXCEEDED or any(
        words in get_message(error) for words in _MEMBER_TROUBLE
    )


def message_contains(error: BaseException, text: str) -> bool:
    """Return whether the message of a gRPC error contains a text.

    Args:
        error: The error. False if it is not a gRPC error.
        text: The text.
    """
    return isinstance(error, grpc.RpcError) and text in get_message(error)


def translate_error(error: grpc.RpcError, description: str) -> LatchworkError:
    """Convert the gRPC error of a failed call to one of latchwork's errors.

    Args:
        error: The gRPC error, which becomes the cause.
        description: A description of the call with its key, such as "read 'a/b'".
    """
    message = get_message(error)
    known = next((known for words, known in _BY_WORDS if words in message), None) or _BY_CODE.get(
        get_status_code(error)
    )
    if known is None:
        return with_cause(Unavailable(f"etcd could not {description} in time ({message}); try again"), error)
    error_class, template = known
    return with_cause(error_class(template.format(description)), error)


def with_cause(converted: LatchworkError, error: BaseException) -> LatchworkError:
    """Set the cause of one of latchwork's errors, and return it."""
    converted.__cause__ = error
    return converted


_ErrorTemplate = tuple[type[LatchworkError], str]
_DENIED: _ErrorTemplate = (
    PermissionDenied,
    "the account may not {}; grant it read and write on the prefix of the store's root",
)
_UNAUTHENTICATED: _ErrorTemplate = (
    AuthenticationFailed,
    "etcd refused the account when asked to {}; check the user and the password in the connection URL",
)
_NAMELESS: _ErrorTemplate = (
    AuthenticationFailed,
    "etcd wants a user when asked to {}; put user:password@ before the host in the connection URL",
)
_FULL: _ErrorTemplate = (
    StoreFull,
    "etcd is out of space and could not {}; compact and defragment it, disarm its alarm, or raise its quota",
)
_BUSY: _ErrorTemplate = (Unavailable, "etcd has too many requests to {}; try again later")
_OVERSIZED: _ErrorTemplate = (
    TransactionTooLarge,
    "the request to {} exceeds what this etcd server takes; write less at once",
)
_OVERSIZED_ANSWER: _ErrorTemplate = (
    TransactionTooLarge,
    (
        "the answer to the request to {} is larger than the channel of the etcd3 client takes; make the client with "
        "grpc_options=[('grpc.max_receive_message_length', -1)]"
    ),
)
_LEASE_GONE: _ErrorTemplate = (SessionLost, "could not {}: its session ended on the server; open a new session")
_BY_WORDS = (
    ("lease not found", _LEASE_GONE),
    ("permission denied", _DENIED),
    ("authentication failed", _UNAUTHENTICATED),
    ("user name is empty", _NAMELESS),
    ("space exceeded", _FULL),
    ("too many requests", _BUSY),
    (OVERSIZED_ANSWER, _OVERSIZED_ANSWER),
    ("too large", _OVERSIZED),
    ("larger than max", _OVERSIZED),
    ("too many operations", _OVERSIZED),
)
_BY_CODE = {
    _Code.PERMISSION_DENIED: _DENIED,
    _Code.UNAUTHENTICATED: _UNAUTHENTICATED,
    _Code.RESOURCE_EXHAUSTED: _BUSY,
}
