"""A call that writes, and the creation of its write counter: an ephemeral znode in which a connection numbers its
writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from latchwork.backends.futures import FutureGenerator
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import ZooKeeperConnection
from latchwork.backends.zookeeper.errors import (
    NoReply,
    WriteCounterMissing,
    no_reply_error,
    refusal_error,
    session_lost_error,
)
from latchwork.backends.zookeeper.layout import ZnodeLayout
from latchwork.backends.zookeeper.reads import ZooKeeperReader
from latchwork.backends.zookeeper.wire import CREATE, EXISTS, MULTI, MULTI_READ, NO_NODE, NODE_EXISTS, OK, Data, Reply
from latchwork.errors import LatchworkError, Unavailable


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A call that writes: its connection, deadline and session.

    Attributes:
        connection: The connection for the requests.
        deadline: Local clock time.
        session_id: ID of the session. None for the store's main connection.
        what: Description of the call with its key, for messages.
    """

    connection: ZooKeeperConnection
    deadline: float
    session_id: str | None
    what: str

    def no_reply_error(self, no_reply: NoReply, *, is_write: bool) -> LatchworkError:
        """Return latchwork's error for a request without a reply.

        Args:
            no_reply: The error of the request.
            is_write: Whether the request could change data.
        """
        return no_reply_error(
            no_reply, description=self.what, is_write=is_write, session_id=self.session_id, closed=True
        )

    def refusal_error(self, code: int, key: str) -> LatchworkError:
        """Return latchwork's error for a request that the server refused.

        Args:
            code: ZooKeeper's error code.
            key: The key that the request concerns.
        """
        return refusal_error(code, description=self.what, key=key)

    def may_retry(self) -> bool:
        """Return whether there is time for another attempt and the connection has not ended."""
        return not self.connection.has_ended and not self.connection.has_passed(self.deadline)

    def send(self, parts: list[bytes]) -> FutureGenerator[wire.MultiReply]:
        """Send a transaction that may safely be executed twice. Return the decoded reply."""
        try:
            return wire.parse_multi((yield self.connection.call(MULTI, wire.encode_multi(parts), self.deadline)))
        except NoReply as no_reply:
            raise self.no_reply_error(no_reply, is_write=False) from no_reply

    def require_write_counter(self, result: wire.MultiReply) -> None:
        """Raise an error if a transaction was refused because the znode for write numbers does not exist.

        Raises:
            WriteCounterMissing: The znode of the store's main connection must be created again. Nothing was written.
            SessionLost: The session has ended.
        """
        if result.error != NO_NODE:
            raise self.refusal_error(result.error, "@w")
        if self.session_id is not None:
            raise session_lost_error(self.session_id, self.what)
        self.connection.counter_path = None
        raise WriteCounterMissing


def create_write_counter(reader: ZooKeeperReader, task: WriteTask, path: str) -> FutureGenerator[int]:
    """Create the znode in which a connection stores the number of its last write. Also create the root of the store if
    it does not exist.

    Args:
        reader: Stores the initial versions of the guard znodes.
        task: The call that writes.
        path: The path of the new znode.

    Returns:
        The number of the ZooKeeper transaction that created the znode.
    """
    layout = reader.layout
    payload = wire.encode_single_request(layout.encode_create(path, flags=wire.EPHEMERAL))
    guards = wire.encode_multi([wire.encode_get_data(guard) for guard in layout.guards])
    while not task.connection.has_passed(task.deadline):
        try:
            created = task.connection.call(CREATE, payload, task.deadline)
            read = task.connection.call(MULTI_READ, guards, task.deadline)  # at once: it is answered after the creation
            reply: Reply = yield created
            if reply.error == NO_NODE:
                yield from _create_root(layout, task)
                continue
            if reply.error not in {OK, NODE_EXISTS}:
                raise task.refusal_error(reply.error, layout.root)
            versions: Reply = yield read
        except NoReply as no_reply:
            if no_reply.sent and not no_reply.has_ended and task.may_retry():
                continue  # the path is unique: if it is there already, it is ours
            raise task.no_reply_error(no_reply, is_write=False) from no_reply
        for number, guard in enumerate(wire.parse_multi_read(versions.body)):
            if isinstance(guard, Data):
                reader.record_guard_version(number, guard.stat.version)
        task.connection.counter_path = path
        return reply.zxid
    raise Unavailable(f"{task.what}: the root {layout.root} could not be prepared in time; try again")


def _create_root(layout: ZnodeLayout, task: WriteTask) -> FutureGenerator[None]:
    """Create the missing znodes of the root: the root itself, its guards and its folders."""
    for path in layout.root_paths():
        reply: Reply = yield task.connection.call(
            CREATE, wire.encode_single_request(layout.encode_create(path)), task.deadline
        )
    if reply.error not in {OK, NODE_EXISTS}:
        # Above the root anything may be refused: it only matters that the root itself is there.
        there: Reply = yield task.connection.call(EXISTS, wire.encode_path_request(layout.root), task.deadline)
        if there.error != OK:
            raise task.refusal_error(reply.error, layout.root)
    parts = [layout.encode_create(path) for path in (*layout.folders, *layout.guards)]
    error = wire.parse_multi((yield task.connection.call(MULTI, wire.encode_multi(parts), task.deadline))).error
    if error not in {OK, NODE_EXISTS}:
        raise task.refusal_error(error, layout.root)
