"""What may have become of a call that failed, by what gRPC and the server say of it."""

from __future__ import annotations

import grpc
import pytest

from latchwork.backends.etcd.errors import CallOutcome, classify_outcome, translate_error
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
        (Code.UNAVAILABLE, "failed to connect to all addresses; last error: refused", CallOutcome.NEVER_SENT),
        (Code.UNAVAILABLE, "Socket closed", CallOutcome.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: request timed out", CallOutcome.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: leader changed", CallOutcome.UNKNOWN),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", CallOutcome.UNKNOWN),
        (Code.CANCELLED, "Channel closed!", CallOutcome.UNKNOWN),
        (Code.UNKNOWN, "etcdserver: something new", CallOutcome.UNKNOWN),
        (Code.INTERNAL, "Received RST_STREAM with error code 2", CallOutcome.UNKNOWN),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", CallOutcome.REFUSED),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", CallOutcome.REFUSED),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", CallOutcome.REFUSED),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", CallOutcome.STALE_TOKEN),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", CallOutcome.STALE_TOKEN),
    ],
)
def test_only_what_surely_was_not_applied_counts_as_that(code, details, expected):
    assert classify_outcome(Failed(code, details)) is expected


def test_an_error_nobody_knows_is_unavailable_with_its_cause():
    error = Failed(Code.UNKNOWN, "etcdserver: something new")
    told = translate_error(error, "read 'a/b'")
    assert isinstance(told, Unavailable)
    assert told.__cause__ is error
    assert "read 'a/b'" in str(told)
