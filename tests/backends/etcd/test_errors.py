"""What may have become of a call that failed, by what gRPC and the server say of it."""

from __future__ import annotations

import grpc
import pytest

from latchwork.backends.etcd.errors import Effect, classify_effect, translate
from latchwork.errors import Unavailable

Code = grpc.StatusCode


class Failed(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code, details):
        super().__init__(details)
        self._code, self._details = code, details

    def code(self):
        return self._code

    def details(self):
        return self._details


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        (Code.UNAVAILABLE, "failed to connect to all addresses; last error: refused", Effect.NEVER_SENT),
        (Code.UNAVAILABLE, "Socket closed", Effect.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: request timed out", Effect.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: leader changed", Effect.UNKNOWN),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Effect.UNKNOWN),
        (Code.CANCELLED, "Channel closed!", Effect.UNKNOWN),
        (Code.UNKNOWN, "etcdserver: something new", Effect.UNKNOWN),
        (Code.INTERNAL, "Received RST_STREAM with error code 2", Effect.UNKNOWN),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", Effect.REFUSED),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Effect.REFUSED),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", Effect.REFUSED),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Effect.STALE_TOKEN),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Effect.STALE_TOKEN),
    ],
)
def test_only_what_surely_was_not_applied_counts_as_that(code, details, expected):
    assert classify_effect(Failed(code, details)) is expected


def test_an_error_nobody_knows_is_unavailable_with_its_cause():
    error = Failed(Code.UNKNOWN, "etcdserver: something new")
    told = translate(error, "read 'a/b'")
    assert isinstance(told, Unavailable)
    assert told.__cause__ is error
    assert "read 'a/b'" in str(told)
