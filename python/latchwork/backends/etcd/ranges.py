"""Several ranges read at once, each linearizable, together no snapshot; and several read at one revision.

A transaction of reads only would do both in one request. But when it is cut off while it runs (its deadline passes, its
connection ends, its server wakes from a freeze) etcd before 3.5.7 and 3.4.23 panics: the server ends, for everybody
(etcd issues 14110 and 14891). Only servers known to be newer get such transactions, and only where one request instead
of many matters. Transactions that may write are safe: they run to their end, whatever becomes of the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etcd3 import etcdrpc as pb

from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import wire
from latchwork.backends.etcd.answers import as_message, unreadable
from latchwork.backends.futures import drive, then
from latchwork.errors import LatchworkError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from latchwork._core import EtcdCodec, EtcdPage
    from latchwork.backends.etcd.connection import Link
    from latchwork.backends.futures import Steps


def read_ranges(
    link: Link, ranges: Sequence[Any], what: str, *, deadline: float | None = None, now: bool = False
) -> Future[list[Any]]:
    """The answer to each ``RangeRequest``, in order; at most 128.

    Args:
        link: to the cluster.
        ranges: requests, as messages.
        what: the action, for messages.
        deadline: by default the call timeout from now.
        now: in this thread, where it is one request.
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

    return _together([drive(page(each)) for each in ranges])


def read_apart(link: Link, ranges: Sequence[Any], what: str, *, deadline: float | None = None) -> Future[list[Any]]:
    """The same, in a request for each whatever the server; all are on their way at once."""
    until = link.clock.now() + link.call_timeout_s if deadline is None else deadline
    sent = [drive(link.call("Range", each, what, until)) for each in ranges]
    return _together(sent)


def read_at_one_revision(link: Link, ranges: Sequence[Any], what: str, deadline: float) -> Steps[list[Any]]:
    """The same, as they all were at one moment after the call began.

    Raises:
        Unavailable: the server compacts its history faster than it can be read.
    """
    first, *others = ranges
    while True:
        answer = yield from link.call("Range", first, what, deadline)
        for each in others:
            each.revision = answer.header.revision
        try:
            return [answer, *(yield read_apart(link, others, what, deadline=deadline))]
        except LatchworkError as error:
            compacted = error.__cause__ is not None and rpc_errors.says(error.__cause__, "compacted")
            if not compacted or link.clock.now() >= deadline:
                raise


def decoded(reads: Sequence[bytes]) -> list[Any]:
    """The range requests in encoded request operations."""
    return [operation.request_range for operation in pb.TxnRequest.FromString(wire.txn(success=reads)).success]


def as_operations(answers: Sequence[Any]) -> list[Any]:
    """Range answers as the answers of a transaction's operations."""
    return [pb.ResponseOp(response_range=answer) for answer in answers]


def _ranges_of(answer: Any) -> list[Any]:
    return [one.response_range for one in answer.responses]


def _together(sent: Sequence[Future[Any]]) -> Future[list[Any]]:
    def steps() -> Steps[list[Any]]:
        found: list[Any] = []
        for each in sent:
            answer = yield each
            found.append(answer)
        return found

    return drive(steps())
