"""A backend on JSON files. Two threads make the calls, sessions have deadlines, and another thread polls the file for
watches.
"""

import logging
import secrets
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from latchwork.errors import Closed, LatchworkError, SessionLost, Unavailable
from latchwork.spi import (
    Backend,
    Current,
    DeliveringWatch,
    Delta,
    Snapshot,
    TroubleLog,
    append_number,
    completed,
    failed,
)
from latchwork.types import Change, Create, SessionAlive
from latchwork_jsonfile import SPEC
from latchwork_jsonfile.file import StateFile
from latchwork_jsonfile.state import is_under

_log = logging.getLogger(__name__)
_CURRENT_EVERY_S = 1.0
_CLOSE_S = 5.0


class JsonFileBackend(Backend):
    """An open store on one root. Thread-safe."""

    capabilities = SPEC.capabilities

    def __init__(self, url, clock):
        self._clock = clock
        self._call_timeout_s = url.call_timeout_s
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        self._file = StateFile(url.path, url.root)
        self._reads = ThreadPoolExecutor(1, "latchwork-jsonfile-reads")
        self._writes = ThreadPoolExecutor(1, "latchwork-jsonfile-writes")
        self._waiting = deque()
        self._sessions = {}
        self._ended = set()  # closed here: refused even while they are still in the file
        self._closed = False
        self._poller = Poller(self, clock)

    # Reads: the file is never stale, so ``stale_ok`` changes nothing.

    def get(self, key, *, stale_ok=False):
        """Return the entry of a key, or None if it does not exist."""
        return self._read(lambda state: state.entries.get(key))

    def get_many(self, keys, *, stale_ok=False):
        """Return the entry of each key in order, with None for keys that do not exist."""
        return self._read(lambda state: [state.entries.get(key) for key in keys])

    def list(self, prefix, *, recursive, limit, start_after, stale_ok=False):
        """Return the entries directly below the prefix, or all entries below it, sorted by key."""

        def work(state):
            depth = prefix.count("/") + 1 if prefix else 0
            keys = [key for key in state.below(prefix) if recursive or key.count("/") == depth]
            return [state.entries[key] for key in keys if start_after is None or key > start_after][:limit]

        return self._read(work)

    def children(self, prefix, *, stale_ok=False):
        """Return the unique names directly below the prefix, sorted."""
        return self._read(lambda state: state.children(prefix))

    # Writes.

    def commit(self, checks, ops):
        """Apply the operations if all checks hold, and return what was written."""
        named = {op.session.id for op in ops if getattr(op, "session", None) is not None}
        named_checks = {check.session_id for check in checks if isinstance(check, SessionAlive)}

        def work(state):
            self._refuse_ended(named)
            for session_id in named_checks & self._ended:
                state.end_session(session_id)
            return state.commit(checks, ops)

        return self._write(work)

    def create_sequential(self, key, value, session):
        """Create a key with a suffix, which is the next number of its parent."""

        def work(state):
            self._refuse_ended({session.id} if session is not None else set())
            full = append_number(key, state.number_for(key))
            while full in state.entries:  # a client has created this very key
                full = append_number(key, state.number_for(key))
            return state.commit((), [Create(full, value, session)]).entries[0]

        return self._write(work)

    def delete_tree(self, prefix):
        """Delete the key at the prefix and everything below it, and return how many keys existed."""
        return self._write(
            lambda state: state.delete([key for key in state.entries if not prefix or is_under(key, prefix)])
        )

    # Sessions. Every process of the machine has the same clock, so each may end the sessions of all.

    def open_session(self, ttl_s, on_gone):
        """Open a session. A TTL below the minimum is raised to it."""
        granted_s = max(float(ttl_s), self.capabilities.min_ttl_s)
        opened_at = self._clock.now()

        def work(state):
            session_id = secrets.token_hex(8)
            state.token += 1
            state.sessions[session_id] = (self._clock.now() + granted_s, granted_s)
            session = JsonFileSession(
                self, session_id, ttl_s=granted_s, opened_at=opened_at, token=state.token, on_gone=on_gone
            )
            self._sessions[session_id] = session
            return session

        return self._write(work)

    def renew(self, session):
        """Renew a session, and return the time of the request."""
        sent_at = self._clock.now()

        def work(state):
            self._refuse_ended({session.id})
            if session.id not in state.sessions:
                raise SessionLost(f"session {session.id} has ended; use a new session")
            state.sessions[session.id] = (self._clock.now() + session.ttl_s, session.ttl_s)
            return sent_at

        return self._write(work)

    def end_session(self, session):
        """End a session and remove its keys.

        If the file cannot be written, the keys are removed when the TTL has passed.
        """
        if session.id in self._ended:
            return completed(None)
        self._ended.add(session.id)
        self._sessions.pop(session.id, None)
        return self._write(lambda state: state.end_session(session.id))

    def expire(self):
        """End the sessions whose deadline has passed. Every write also does this."""
        with self._file.lock(time.monotonic() + self._call_timeout_s):
            self._expire()

    def notify_gone(self, state):
        """Notify the owners of sessions that are no longer in the file."""
        for session_id, session in list(self._sessions.items()):
            if session.token <= state.token and session_id not in state.sessions:
                self._sessions.pop(session_id, None)
                session.on_gone()

    # Watches.

    def watch(self, prefix, callback, *, single_key=False, siblings=False, heartbeats=True):
        """Send the changes of the key at a prefix, and of all keys below it, to a callback."""
        return self._poller.watch(prefix, callback, heartbeats=heartbeats)

    def current_state(self):
        """Return the newest state."""
        return self._file.read()

    def close(self):
        """End all watches and sessions, and join the threads. Idempotent."""
        if self._closed:
            return
        endings = [session.close() for session in list(self._sessions.values())]
        for ending in endings:
            try:
                ending.result(_CLOSE_S)
            except (LatchworkError, TimeoutError) as error:
                _log.info("a session was left to its TTL: %s", error)
        self._closed = True
        self._poller.close()
        self._reads.shutdown()
        self._writes.shutdown()

    def _read(self, work):
        deadline = time.monotonic() + self._call_timeout_s

        def read():
            _refuse_late(deadline)
            return work(self._file.read())

        try:
            return self._reads.submit(read)
        except RuntimeError:
            return failed(Closed("the store was closed"))

    def _write(self, work):
        """Call a function that changes the state, and save the state. Writes that wait at the same time are saved
        together.
        """
        write = Write(work, time.monotonic() + self._call_timeout_s)
        self._waiting.append(write)
        try:
            self._writes.submit(self._write_all)
        except RuntimeError:
            return failed(Closed("the store was closed"))
        return write.future

    def _write_all(self):
        """Apply all waiting writes and save the state once. A write that fails does not affect the others."""
        writes = []
        while self._waiting:
            writes.append(self._waiting.popleft())
        if not writes:
            return  # an earlier call of this function has made them
        deadline = min(write.deadline for write in writes)
        try:
            with self._file.lock(deadline):
                state = self._expire()
                for write in writes:
                    state = write.apply_to(state)
                if any(write.error is None for write in writes):
                    self._file.save(state.copy())
        except Exception as error:
            for write in writes:
                write.error = error
        self._poller.wake()
        for write in writes:
            write.end()

    def _expire(self):
        """End the sessions whose deadline has passed, and return the newest state. The caller must hold the lock of the
        file.
        """
        state = self._file.read()
        deadline = state.next_deadline()
        if state.boot == self._boot and (deadline is None or deadline > self._clock.now()):
            return state
        state = state.copy()
        state.expire(self._clock.now(), self._boot)
        self._file.save(state)
        return state

    def _refuse_ended(self, session_ids):
        for session_id in session_ids & self._ended:
            raise SessionLost(f"session {session_id} was closed; use a new session")


class Write:
    """A write that waits to be applied."""

    def __init__(self, work, deadline):
        self.deadline = deadline
        self.future = Future()
        self.error = None
        self._work = work
        self._result = None

    def apply_to(self, state):
        """Apply the write to a state, and return the new state. If the write fails, return the old state."""
        after = state.copy()
        try:
            _refuse_late(self.deadline)
            self._result = self._work(after)
        except Exception as error:
            self.error = error
            return state
        return after

    def end(self):
        """Complete the future of the write with its result. Called after the state was saved."""
        if self.error is None:
            self.future.set_result(self._result)
        else:
            self.future.set_exception(self.error)


class JsonFileSession:
    """A session that is stored in the file. The session thread of the store renews it."""

    confirm_gap_s = 0.0  # the file itself confirms a renewal, so each one counts

    def __init__(self, backend, session_id, *, ttl_s, opened_at, token, on_gone):
        self._backend = backend
        self.id = session_id
        self.ttl_s = ttl_s
        self.opened_at = opened_at
        self.token = token
        self.on_gone = on_gone
        self.renew_every_s = ttl_s / 3

    def renew(self):
        """Renew the session for another TTL."""
        return self._backend.renew(self)

    def close(self):
        """End the session now. Idempotent."""
        return self._backend.end_session(self)


class Poller:
    """A thread that polls the file, delivers changes to all watches, and ends sessions."""

    def __init__(self, backend, clock):
        self._backend = backend
        self._clock = clock
        self._mutex = threading.Lock()
        self._watches = []
        self._entries = {}
        self._generation = 0
        self._wake = threading.Event()
        self._closing = False
        self._trouble = TroubleLog(_log)
        self._thread = threading.Thread(target=self._run, name="latchwork-jsonfile-poll", daemon=True)
        self._thread.start()

    def watch(self, prefix, callback, *, heartbeats):
        """Add a watch. Its first event is a snapshot of the current state."""
        watch = DeliveringWatch(prefix, callback, self._forget)
        watch.heartbeats, watch.is_new, watch.heard_at = heartbeats, True, 0.0
        with self._mutex:
            self._watches.append(watch)
        self.wake()
        return watch

    def wake(self):
        """Make the thread read the file now."""
        self._wake.set()

    def close(self):
        """End all watches and wait for the end of the thread."""
        for watch in list(self._watches):
            watch.close()
        self._closing = True
        self.wake()
        self._thread.join()

    def _forget(self, watch):
        with self._mutex:
            if watch in self._watches:
                self._watches.remove(watch)

    def _run(self):
        while not self._closing:
            self._wake.clear()
            try:
                self._look()
            except LatchworkError as error:
                self._trouble.record_failure(error, "watches are delayed, retrying")
            else:
                self._trouble.record_success("watches are up to date again")
            self._wake.wait(SPEC.capabilities.poll_interval_s)

    def _look(self):
        with self._mutex:
            watches = list(self._watches)
        as_of = self._clock.now()  # before the read: the state is at least as new as this
        state = self._backend.current_state()
        changed = self._changes(state) if state.generation != self._generation else []
        for watch in watches:
            event = self._event(watch, state, changed, as_of)
            if event is not None:
                watch.is_new, watch.heard_at = False, as_of
                watch.deliver(event)
        self._backend.notify_gone(state)
        deadline = state.next_deadline()
        if deadline is not None and deadline <= as_of:
            self._backend.expire()
            self.wake()

    def _changes(self, state):
        before, self._entries, self._generation = self._entries, state.entries, state.generation
        after = state.entries
        keys = sorted(before.keys() | after.keys())
        return [Change(key, after.get(key)) for key in keys if _token(before, key) != _token(after, key)]

    def _event(self, watch, state, changed, as_of):
        if watch.is_new:
            found = [entry for key, entry in state.entries.items() if is_under(key, watch.prefix)]
            return Snapshot(tuple(found), as_of)
        changes = tuple(change for change in changed if is_under(change.key, watch.prefix))
        if changes:
            return Delta(changes, as_of)
        is_due = as_of - watch.heard_at >= _CURRENT_EVERY_S
        return Current(as_of) if watch.heartbeats and is_due else None


def _refuse_late(deadline):
    if time.monotonic() >= deadline:
        raise Unavailable("the call waited for others until its timeout; nothing was done")


def _token(entries, key):
    return entries[key].token if key in entries else None
