"""The encoding of ZooKeeper requests and decoding of replies. It covers those that kazoo lacks, and the frequent ones.

A request is a type and a payload. A reply is an error code, a transaction number (zxid), and a body for one of the
``parse_*`` functions.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

# Request types.
CREATE, DELETE, EXISTS, GET_DATA, SET_DATA = 1, 2, 3, 4, 5
GET_CHILDREN, SYNC, CHECK, MULTI, REMOVE_WATCHES, MULTI_READ = 8, 9, 13, 14, 18, 22
ADD_WATCH, CLOSE = 106, -11
_CREATE2, _CREATE_CONTAINER = 15, 19  # the first names what a multi answers to the second

# Error codes.
OK = 0
RUNTIME_INCONSISTENCY = -2
NO_NODE, NO_AUTH, BAD_VERSION, EPHEMERAL_PARENT = -101, -102, -103, -108
NODE_EXISTS, NOT_EMPTY, SESSION_EXPIRED, INVALID_ACL = -110, -111, -112, -114
QUOTA_EXCEEDED = -125

# Events.
DELETED, CHANGED = 2, 3

# Create flags.
PERSISTENT, EPHEMERAL, SEQUENTIAL, _CONTAINER = 0, 1, 2, 4

#: The server refuses packets from here on (its default ``jute.maxbuffer``); the header takes 8 bytes of it.
MAX_PAYLOAD = 1_048_575 - 8

RECURSIVE = 1  # mode of ADD_WATCH: persistent, with the whole subtree
ANY_WATCH = 3  # type of REMOVE_WATCHES: every watch of this connection at the path

INT = struct.Struct("!i")
REQUEST_HEAD = struct.Struct("!iii")  # length, xid, type
REPLY_HEAD = struct.Struct("!iqi")  # xid, zxid, error
EVENT_HEAD = struct.Struct("!ii")  # type, state
_MULTI_HEAD = struct.Struct("!iBi")  # type, done, error
_STAT = struct.Struct("!qqqqiiiqiiq")
_MULTI_END = _MULTI_HEAD.pack(-1, 1, -1)
_HEADS = {
    kind: _MULTI_HEAD.pack(kind, 0, -1)
    for kind in (CREATE, DELETE, SET_DATA, CHECK, GET_DATA, GET_CHILDREN, _CREATE_CONTAINER)
}


class Stat(NamedTuple):
    """The metadata of a znode, in the order of ZooKeeper's encoding."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    children: int
    pzxid: int


class Reply(NamedTuple):
    """A reply of the server.

    Attributes:
        resolved: There was no reply, but the write was found to be applied as the transaction ``zxid``.
    """

    error: int
    zxid: int
    body: bytes
    resolved: bool = False


class Data(NamedTuple):
    """The result of a getData request: the data and metadata of a znode."""

    data: bytes
    stat: Stat


#: What one read of a MULTI_READ gives: data, names or an error code.
Found = Data | list[str] | int


class MultiReply(NamedTuple):
    """The results of a transaction in order. If ``error`` is not OK, nothing was done, and operation ``failed`` was
    refused.
    """

    results: list[Stat | str | None]
    error: int = OK
    failed: int = -1


# Requests.


def encode_text(value: str) -> bytes:
    """Encode a string."""
    raw = value.encode()
    return INT.pack(len(raw)) + raw


def encode_bytes(value: bytes) -> bytes:
    """Encode bytes."""
    return INT.pack(len(value)) + value


def encode_path_request(path: str, number: int | None = None) -> bytes:
    """Encode a request that consists of a path and a number or flag, such as getData, exists and getChildren."""
    return encode_text(path) + (b"\0" if number is None else INT.pack(number))


def encode_get_data_and_watch(path: str) -> bytes:
    """Encode a getData request that sets a one-shot watch."""
    return encode_text(path) + b"\1"


def encode_acl(entries: tuple[tuple[int, str, str], ...]) -> bytes:
    """Encode an ACL, given as (permissions, scheme, id) tuples."""
    return INT.pack(len(entries)) + b"".join(
        INT.pack(permissions) + encode_text(scheme) + encode_text(identity) for permissions, scheme, identity in entries
    )


def encode_create(path: str, data: bytes, acl: bytes, flags: int = PERSISTENT) -> bytes:
    """Encode the creation of a znode as an operation of a transaction.

    Args:
        path: The path of the znode.
        data: Its data.
        acl: Its encoded ACL.
        flags: ZooKeeper's create mode.
    """
    return _HEADS[CREATE] + encode_text(path) + encode_bytes(data) + acl + INT.pack(flags)


def encode_create_container(path: str, acl: bytes) -> bytes:
    """Encode the creation of a container znode as an operation of a transaction.

    The server deletes a container some time after its last child.
    """
    return _HEADS[_CREATE_CONTAINER] + encode_text(path) + encode_bytes(b"") + acl + INT.pack(_CONTAINER)


def encode_delete(path: str, version: int = -1) -> bytes:
    """Encode the deletion of a znode as an operation of a transaction. Version -1 matches any version."""
    return _HEADS[DELETE] + encode_text(path) + INT.pack(version)


def encode_set_data(path: str, data: bytes, version: int = -1) -> bytes:
    """Encode a setData as an operation of a transaction. Version -1 matches any version."""
    return _HEADS[SET_DATA] + encode_text(path) + encode_bytes(data) + INT.pack(version)


def encode_check(path: str, version: int = -1) -> bytes:
    """Encode the check of a znode's version as an operation of a transaction. Version -1 matches any version."""
    return _HEADS[CHECK] + encode_text(path) + INT.pack(version)


def encode_get_data(path: str) -> bytes:
    """Encode a getData as one read of a multi-read request."""
    return _HEADS[GET_DATA] + encode_text(path) + b"\0"


def encode_get_children(path: str) -> bytes:
    """Encode a getChildren as one read of a multi-read request."""
    return _HEADS[GET_CHILDREN] + encode_text(path) + b"\0"


def encode_single_request(part: bytes) -> bytes:
    """Encode a separate request from an encoded operation of a transaction."""
    return part[_MULTI_HEAD.size :]


def encode_multi(parts: list[bytes]) -> bytes:
    """Encode a transaction from its operations, or a multi-read request from its reads."""
    return b"".join(parts) + _MULTI_END


# Replies.


def parse_text(body: bytes, index: int) -> tuple[str, int]:
    """Decode a string at an index. Return it with the index after it."""
    (length,) = INT.unpack_from(body, index)
    index += 4
    return (body[index : index + length].decode(), index + length) if length > 0 else ("", index)


def parse_stat(body: bytes, index: int = 0) -> Stat:
    """Decode the metadata of a znode at an index."""
    return Stat._make(_STAT.unpack_from(body, index))


def parse_data(body: bytes, index: int = 0) -> tuple[Data, int]:
    """Decode the data and metadata of a znode at an index. Return them with the index after them."""
    (length,) = INT.unpack_from(body, index)
    index += 4
    end = index + max(length, 0)
    return Data(body[index:end], Stat._make(_STAT.unpack_from(body, end))), end + _STAT.size


def parse_names(body: bytes, index: int = 0) -> tuple[list[str], int]:
    """Decode the names of children at an index, in the server's order. Return them with the index after them."""
    (count,) = INT.unpack_from(body, index)
    index += 4
    names = []
    for _ in range(count):
        name, index = parse_text(body, index)
        names.append(name)
    return names, index


def parse_multi(reply: Reply) -> MultiReply:
    """Decode the reply to a transaction.

    Without a body, the result has no single results: the transaction was refused as a whole, or its reply was lost.
    """
    body = reply.body
    if not body:
        return MultiReply([], reply.error)
    results: list[Stat | str | None] = []
    errors: list[int] = []
    at = 0
    while True:
        kind, done, _ = _MULTI_HEAD.unpack_from(body, at)
        at += _MULTI_HEAD.size
        if done:
            break
        result: Stat | str | None = None
        if kind in {CREATE, _CREATE2}:
            result, at = parse_text(body, at)
            at += _STAT.size if kind == _CREATE2 else 0
        elif kind == SET_DATA:
            result = parse_stat(body, at)
            at += _STAT.size
        elif kind == -1:
            errors.append(INT.unpack_from(body, at)[0])
            at += 4
        results.append(result)
    for index, code in enumerate(errors):
        if code not in {OK, RUNTIME_INCONSISTENCY}:
            return MultiReply([], code, index)
    return MultiReply([], errors[0], 0) if errors else MultiReply(results)


def parse_multi_read(body: bytes) -> list[Found]:
    """Decode the results of a multi-read request, in order."""
    results: list[Found] = []
    at = 0
    while True:
        kind, done, _ = _MULTI_HEAD.unpack_from(body, at)
        at += 9
        if done:
            return results
        if kind == GET_DATA:
            found, at = parse_data(body, at)
            results.append(found)
        elif kind == GET_CHILDREN:
            names, at = parse_names(body, at)
            results.append(names)
        else:
            results.append(INT.unpack_from(body, at)[0])
            at += 4
