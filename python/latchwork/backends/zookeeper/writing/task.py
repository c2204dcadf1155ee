"""A call that writes, and the evidence that it needs: an ephemeral znode in which a connection numbers its writes."""

from __future__ import annotations

from dataclasses import dataclass

from latchwork.backends.futures import Steps
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import Connection
from latchwork.backends.zookeeper.errors import EvidenceGone, NoReply, code_error, no_reply_error, session_lost
from latchwork.backends.zookeeper.layout import Layout
from latchwork.backends.zookeeper.reads import Reader
from latchwork.backends.zookeeper.wire import CREATE, EXISTS, MULTI, MULTI_READ, NO_NODE, NODE_EXISTS, OK, Data, Reply
from latchwork.errors import LatchworkError, Unavailable


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A call that writes.

    Attributes:
        connection: The connection to use.
        deadline: Local clock time.
        session_id: ID of the session; None without one.
        what: The call and its key, for messages.
    """

    connection: Connection
    deadline: float
    session_id: str | None
    what: str

    def error(self, cut: NoReply, *, write: bool) -> LatchworkError:
        """Return the error for a lost connection."""
        return no_reply_error(cut, what=self.what, write=write, session_id=self.session_id, closed=True)

    def refusal_error(self, code: int, key: str) -> LatchworkError:
        """Return the error for a request that the server refused."""
        return code_error(code, what=self.what, key=key)

    def may_retry(self) -> bool:
        """Return whether there is a connection and time for another attempt."""
        return not self.connection.over and not self.connection.is_late(self.deadline)

    def send(self, parts: list[bytes]) -> Steps[wire.MultiReply]:
        """Send a transaction that may be repeated, so that it need not be numbered."""
        try:
            return wire.parse_multi((yield self.connection.call(MULTI, wire.multi(parts), self.deadline)))
        except NoReply as cut:
            raise self.error(cut, write=False) from cut

    def check_evidence(self, result: wire.MultiReply) -> None:
        """Raise the error for a transaction that failed because the znode that numbers this connection's writes is
        missing.

        Raises:
            EvidenceGone: The store's own connection needs new evidence. Nothing was written.
            SessionLost: The session has ended.
        """
        if result.error != NO_NODE:
            raise self.refusal_error(result.error, "@w")
        if self.session_id is not None:
            raise session_lost(self.session_id, self.what)
        self.connection.evidence = None
        raise EvidenceGone


def prepare(reader: Reader, task: WriteTask, path: str) -> Steps[int]:
    """Create the znode in which the connection numbers its writes at a new path, and the root if it does not exist.

    Returns:
        The number of the transaction that created it. The reader learns the versions of the guards.
    """
    layout = reader.layout
    payload = wire.encode_single_request(layout.create(path, flags=wire.EPHEMERAL))
    guards = wire.multi([wire.read_data(guard) for guard in layout.guards])
    while not task.connection.is_late(task.deadline):
        try:
            created = task.connection.call(CREATE, payload, task.deadline)
            read = task.connection.call(MULTI_READ, guards, task.deadline)  # at once: it is answered after the creation
            reply: Reply = yield created
            if reply.error == NO_NODE:
                yield from _make_root(layout, task)
                continue
            if reply.error not in {OK, NODE_EXISTS}:
                raise task.refusal_error(reply.error, layout.root)
            versions: Reply = yield read
        except NoReply as cut:
            if cut.sent and not cut.over and task.may_retry():
                continue  # the path is unique: if it is there already, it is ours
            raise task.error(cut, write=False) from cut
        for number, guard in enumerate(wire.parse_multi_read(versions.body)):
            if isinstance(guard, Data):
                reader.learn(number, guard.stat.version)
        task.connection.evidence = path
        return reply.zxid
    raise Unavailable(f"{task.what}: the root {layout.root} could not be prepared in time; try again")


def _make_root(layout: Layout, task: WriteTask) -> Steps[None]:
    """Create the missing znodes of the root: the root itself, its guards and its folders."""
    for path in layout.root_paths():
        reply: Reply = yield task.connection.call(
            CREATE, wire.encode_single_request(layout.create(path)), task.deadline
        )
    if reply.error not in {OK, NODE_EXISTS}:
        # Above the root anything may be refused: it only matters that the root itself is there.
        there: Reply = yield task.connection.call(EXISTS, wire.encode_path_request(layout.root), task.deadline)
        if there.error != OK:
            raise task.refusal_error(reply.error, layout.root)
    parts = [layout.create(path) for path in (*layout.folders, *layout.guards)]
    error = wire.parse_multi((yield task.connection.call(MULTI, wire.multi(parts), task.deadline))).error
    if error not in {OK, NODE_EXISTS}:
        raise task.refusal_error(error, layout.root)
