"""Calls of etcd's API over a gRPC channel, without latchwork. Tests and benches use them to inspect a server."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from latchwork.backends.etcd import rpc_pb2 as pb

__all__ = ["Stub", "import_etcd3", "pb"]


class Stub:
    """The methods of one of etcd's gRPC services as attributes: ``Stub(channel, "KV").Range(pb.RangeRequest(...))``."""

    def __init__(self, channel: grpc.Channel, service: str) -> None:
        for method in pb.DESCRIPTOR.services_by_name[service].methods:
            make = channel.stream_stream if method.server_streaming else channel.unary_unary
            call = make(
                f"/etcdserverpb.{service}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def import_etcd3() -> Any:
    """Import the package python-etcd3 with latchwork's protobuf messages, and return the module.

    The messages of python-etcd3 load with protobuf 4 or later only if the whole process uses the slow implementation of
    protobuf. With these messages, it is measured with the same implementation as latchwork.
    """
    if "etcd3.etcdrpc" not in sys.modules:
        theirs = ModuleType("etcd3.etcdrpc")
        vars(theirs).update(vars(pb))
        for service in pb.DESCRIPTOR.services_by_name:
            setattr(theirs, f"{service}Stub", partial(Stub, service=service))
        theirs.ClusterStub = lambda channel: None  # type: ignore[attr-defined]  # noqa: ARG005
        sys.modules["etcd3.etcdrpc"] = theirs
    import etcd3

    return etcd3
