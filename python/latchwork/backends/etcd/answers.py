"""What becomes of a call: its answer as it came, as a message or decoded. Nothing here touches the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from etcd3 import etcdrpc as pb
from google.protobuf.message import DecodeError

from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.futures import Outcome, drive, reject, resolve
from latchwork.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from latchwork.backends.etcd.connection import Link

T = TypeVar("T")


class Answered:
    """A call made in the calling thread: what gRPC's own future offers, and nobody else to wait for."""

    __slots__ = ("_answer", "_error")

    def __init__(self, answer: Any = None, error: grpc.RpcError | None = None) -> None:
        self._answer = answer
        self._error = error

    def code(self) -> grpc.StatusCode:
        """The status of the call."""
        return grpc.StatusCode.OK if self._error is None else rpc_errors.code(self._error)

    def done(self) -> bool:
        """It has ended."""
        return True

    def exception(self) -> grpc.RpcError | None:
        """Its error, if it failed."""
        return self._error

    def result(self) -> Any:
        """Its answer."""
        if self._error is not None:
            raise self._error
        return self._answer

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        """Call at once."""
        fn(self)


def as_message(method: str, answer: bytes) -> Any:
    """The answer to a Range or a Txn as a message.

    Raises:
        ValueError: it is none.
    """
    try:
        return (pb.RangeResponse if method == "Range" else pb.TxnResponse).FromString(answer)
    except DecodeError as error:
        msg = f"etcd's answer cannot be read: {error}"
        raise ValueError(msg) from error


def unreadable(what: str, error: ValueError) -> Unavailable:
    """The error of a read whose answer cannot be read."""
    mine = Unavailable(f"could not {what}: {error}; try again")
    mine.__cause__ = error
    return mine


class ReadOutcome(Outcome[T]):
    """A read under way, and the future of its decoded answer."""

    __slots__ = ("_again", "_deadline", "_decode", "_link", "_what")

    def __init__(
        self, link: Link, again: tuple[str, Any], what: str, decode: Callable[[bytes], T], deadline: float
    ) -> None:
        super().__init__()
        self._link = link
        self._again = again
        self._what = what
        self._decode = decode
        self._deadline = deadline

    def ended(self, rpc: Any) -> None:
        """The first try has ended."""
        try:
            answer = rpc.result()
        except grpc.RpcError as error:
            again = self._link.read_again(error, self._again, self._what, self._deadline)
            drive(again).add_done_callback(self._ended_later)
        else:
            self._deliver(answer)

    def _ended_later(self, done: Future[bytes]) -> None:
        error = done.exception()
        if error is not None:
            reject(self, error)
        else:
            self._deliver(done.result())

    def _deliver(self, answer: bytes) -> None:
        try:
            resolve(self, self._decode(answer))
        except ValueError as error:
            reject(self, unreadable(self._what, error))
        except Exception as error:  # whoever waits on the outcome must hear of it
            reject(self, error)
