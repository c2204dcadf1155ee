"""Several ranges read at once, each linearizable, together no snapshot; and several read at one revision.

A transaction of reads only would do both in one request. But when it is cut off while it runs (its deadline passes, its
connection ends, its server wakes from a freeze) etcd before 3.5.7 and 3.4.23 panics: the server ends, for everybody
(etcd issues 14110 and 14891). Only servers known to be newer get such transactions, and only where one request instead
of many matters. Transactions that may write are safe: they run to their end, whatever becomes of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from latchwork._core import EtcdCodec, EtcdPage, EtcdRequest
from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.answers import as_message, unreadable
from latchwork.backends.etcd.connection import Link
from latchwork.backends.futures import Steps, drive, then, together
from latchwork.errors import LatchworkError


def read_ranges(
    link: Link, ranges: Sequence[Any], what: str, *, deadline: float | None = None, now: bool = False
) -> Future[list[Any]]:
    """The answer to each ``RangeRequest``, in order; at most 128. The default deadline is the call timeout from now.

    With ``now`` the request is made in this thread, where it is one.
    """
    if not link.survives_cut_reads:
        return read_apart(link, ranges, what, deadline=deadline)
    request = pb.TxnRequest(success=[pb.RequestOp(request_range=each) for each in ranges])
    if deadline is None:
        return link.read("Txn", request, what, lambda answer: _ranges_of(as_message("Txn", answer)), now=now)
    return then(drive(link.call("Txn", request, what, deadline)), _ranges_of)


def read_pages(link: Link, codec: EtcdCodec, ranges: Sequence[Any], what: str) -> Future[list[EtcdPage]]:
    """The pages of some ranges, in a request for each; all are on their way at once, for the call timeout at most."""
    until = link.clock.now() + link.call_timeout_s

    def page(request: Any) -> Steps[EtcdPage]:
        answer = yield from link.fetch("Range", request, what, until)
        try:
            return codec.page(answer)
        except ValueError as error:
            raise unreadable(what, error) from error

    return together([drive(page(each)) for each in ranges])


def read_apart(link: Link, ranges: Sequence[Any], what: str, *, deadline: float | None = None) -> Future[list[Any]]:
    """The same, in a request for each whatever the server; all are on their way at once."""
    until = link.clock.now() + link.call_timeout_s if deadline is None else deadline
    sent = [drive(link.call("Range", each, what, until)) for each in ranges]
    return together(sent)


def read_at_one_revision(link: Link, reads: Sequence[bytes], what: str, deadline: float) -> Steps[list[Any]]:
    """The answers to some encoded operations that read, as they all were at one moment after the call began.

    Raises:
        Unavailable: the server compacts its history faster than it can be read.
    """
    operations = pb.TxnRequest.FromString(EtcdRequest.txn((), reads)).success
    first, *others = [operation.request_range for operation in operations]
    while True:
        answer = yield from link.call("Range", first, what, deadline)
        for each in others:
            each.revision = answer.header.revision
        try:
            answers = [answer, *(yield read_apart(link, others, what, deadline=deadline))]
            return [pb.ResponseOp(response_range=each) for each in answers]
        except LatchworkError as error:
            compacted = error.__cause__ is not None and rpc_errors.says(error.__cause__, "compacted")
            if not compacted or link.clock.now() >= deadline:
                raise


def _ranges_of(answer: Any) -> list[Any]:
    return [one.response_range for one in answer.responses]
