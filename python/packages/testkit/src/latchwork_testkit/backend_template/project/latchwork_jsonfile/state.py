"""The contents of a root, and the effect of transactions on them. No I/O and no clock, so that every rule can be tested
alone.
"""

import base64
from dataclasses import dataclass, field

from latchwork.errors import Conflict, InvalidKey, SessionLost
from latchwork.spi import VersionKey, check_version
from latchwork.types import Absent, At, Committed, Create, Delete, Entry, SessionAlive


@dataclass
class State:
    """The keys and sessions of a root at one time.

    Attributes:
        generation: Grows with every save.
        token: That of the last write.
        boot: The ID of the machine's boot in which the sessions were opened.
        entries: By key.
        sessions: The deadline and the TTL of each session, by its ID.
        numbers: The last number given to a sequential key, by its parent.
    """

    generation: int = 0
    token: int = 0
    boot: str = ""
    entries: dict = field(default_factory=dict)
    sessions: dict = field(default_factory=dict)
    numbers: dict = field(default_factory=dict)

    def copy(self):
        """Return a copy that a write can change. Entries are immutable."""
        return State(
            self.generation, self.token, self.boot, dict(self.entries), dict(self.sessions), dict(self.numbers)
        )

    def as_json(self):
        """Return the state as a dictionary for JSON."""
        entries = {
            entry.key: [base64.b64encode(entry.value).decode(), entry.token, entry.created, entry.owner]
            for entry in self.entries.values()
        }
        return {**vars(self), "entries": entries}

    @classmethod
    def from_json(cls, document):
        """Return the state that `as_json` returned as a dictionary."""
        entries = {
            key: Entry(key, base64.b64decode(value), VersionKey(token), token, created, owner)
            for key, (value, token, created, owner) in document.pop("entries").items()
        }
        return cls(entries=entries, **document)

    # Reads.

    def below(self, prefix):
        """Return the keys below a prefix, sorted. At the root, keys whose first segment starts with @ are left out."""
        start = f"{prefix}/" if prefix else ""
        return sorted(key for key in self.entries if key.startswith(start) and is_under(key, prefix) and key != prefix)

    def children(self, prefix):
        """Return the unique names directly below a prefix, sorted. They are keys or parents of keys."""
        skip = len(prefix) + 1 if prefix else 0
        return sorted({key[skip:].partition("/")[0] for key in self.below(prefix)})

    def next_deadline(self):
        """Return the time at which the next session expires, or None without sessions."""
        return min((deadline for deadline, _ in self.sessions.values()), default=None)

    # Writes.

    def commit(self, checks, ops):
        """Apply all operations if all checks hold. If an error is raised, the caller must drop this state."""
        for op in ops:
            if not isinstance(op, Delete) and op.session is not None and op.session.id not in self.sessions:
                raise SessionLost(f"session {op.session.id} has ended; use a new session")
        failed = [check for check in checks if not self._holds(check)]
        failed += [op for op in ops if isinstance(op, Create) and op.key in self.entries]
        if failed:
            raise Conflict(f"nothing was written: {len(failed)} checks failed, first {failed[0]}", failed)
        written, deleted = [], []
        token = self.token + 1
        for op in ops:
            if isinstance(op, Delete):
                if self.entries.pop(op.key, None) is not None:
                    deleted.append(op.key)
            else:
                written.append(self._put(op, token))
        self._check_leaves(written)
        if not written and not deleted:
            return Committed(0)
        self.token = token
        return Committed(token, tuple(written), tuple(deleted))

    def number_for(self, key):
        """Return the next number for a sequential key of this parent. A number is never returned twice."""
        parent = key.rpartition("/")[0]
        self.numbers[parent] = self.numbers.get(parent, 0) + 1
        return self.numbers[parent]

    def delete(self, keys):
        """Delete keys, and return how many existed."""
        return len(self.commit((), [Delete(key) for key in keys]).deleted)

    def end_session(self, session_id):
        """Remove a session and the keys that are bound to it."""
        self.sessions.pop(session_id, None)
        self.delete([entry.key for entry in self.entries.values() if entry.owner == session_id])

    def expire(self, now, boot):
        """End the sessions whose deadline has passed, and all sessions of another boot. Return whether any ended."""
        ended = [each for each, (deadline, _) in self.sessions.items() if deadline <= now or self.boot != boot]
        for each in ended:
            self.end_session(each)
        self.boot = boot
        return bool(ended)

    def _holds(self, check):
        if isinstance(check, SessionAlive):
            return check.session_id in self.sessions
        entry = self.entries.get(check.key)
        if isinstance(check, At):
            check_version(check.version, VersionKey)
            return entry is not None and entry.version == check.version
        return (entry is None) == isinstance(check, Absent)

    def _put(self, op, token):
        before = self.entries.get(op.key)
        owner = before.owner if before else None
        if op.session is not None:
            owner = op.session.id
        entry = Entry(op.key, op.value, VersionKey(token), token, before.created if before else token, owner)
        self.entries[op.key] = entry
        return entry

    def _check_leaves(self, written):
        """Check that no written key is below a session-bound key. Other keys cannot violate this rule."""
        for entry in written:
            if entry.owner is not None and any(key.startswith(f"{entry.key}/") for key in self.entries):
                raise InvalidKey(f"{entry.key!r} has keys below it, so it cannot be bound to a session")
            parts = entry.key.split("/")
            for above in ("/".join(parts[:depth]) for depth in range(1, len(parts))):
                if above in self.entries and self.entries[above].owner is not None:
                    raise InvalidKey(f"{entry.key!r} is below {above!r}, which is bound to a session")


def is_under(key, prefix):
    """Return whether a key equals a prefix or is below it: ``ab`` is not below ``a``."""
    if not prefix:
        return not key.startswith("@")
    return key == prefix or key.startswith(f"{prefix}/")
