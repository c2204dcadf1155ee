"""Answers: of calls made in the calling thread, and as messages. Nothing here touches the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.errors import LatchworkError, Unavailable


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


def unreadable(what: str, error: ValueError) -> LatchworkError:
    """The error of a read whose answer cannot be read."""
    return rpc_errors.caused(Unavailable(f"could not {what}: {error}; try again"), error)
