"""One client of a play: a store with a watch, a mirror and a session, and a loop that writes; all of it goes on record.

``serve`` has it in a process of its own, to be frozen and killed.

alive/<client>          bound to its session; bound anew to the next one when that is lost
log/<client>-<number>   created once, never touched again: every watch has to report it
reg/<0..2>              overwritten by everybody, and read
pair/x, pair/y          written only together, by everybody
tmp/<client>            written and deleted
settle/<client>         written when the trouble is over, to settle what was unknown
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import latchwork
from latchwork.errors import Closed, LatchworkError, OutcomeUnknown
from latchwork.types import Put
from latchwork_testkit.histories.calls import OK, REFUSED, UNKNOWN
from patience import Deadline
from trials.judges.contract.facts import Call, Mark, Seen, Settled
from trials.remote import Wire

PACE_S = 0.01
_RETRY_S = 0.02
_QUIET_S = 20.0


class Client:
    """A client. Construct, ``write_on``, ``settle``, ``close``, from one thread.

    Args:
        name: in the record.
        url: of its store.
        sink: takes facts in; called from several threads.
    """

    def __init__(self, name: str, url: str, ttl_s: float, sink: Callable[[Any], None]) -> None:
        self.name = name
        self.ttl_s = ttl_s
        self.store = latchwork.connect(url)
        self._sink = sink
        self._stop, self._quiet, self._writing = threading.Event(), threading.Event(), threading.Event()
        self._session: latchwork.Session | None = None
        self._number = self._looks = 0
        self._calls = itertools.count()
        self._lock = threading.Lock()
        self._unknown: list[Call] = []
        self.mirror = self.store.mirror("")
        self._watch = self.store.watch("")
        self._bound = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"play-{name}-{target.__name__}", daemon=True)
            for target in (self._follow, self._keep, self._write)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def session(self) -> latchwork.Session | None:
        """The present session; None while there is none."""
        return self._session

    def ready(self, timeout_s: float = 15.0) -> None:
        """Wait until its session is open and its key bound."""
        if not self._bound.wait(timeout_s):
            raise TimeoutError(f"client {self.name} could not open a session within {timeout_s} s")

    def write_on(self) -> None:
        """Write from now on, until ``settle``."""
        self._writing.set()

    def settle(self) -> list[str]:
        """Stop writing, and find out about every write that is unknown; says what could not be done."""
        self._quiet.set()
        self._threads[2].join(_QUIET_S)
        if self._threads[2].is_alive():
            return [f"the writer of {self.name} still hangs in a call {_QUIET_S:.0f} s after the trouble"]
        token = max(self._insist(self._settle_store), self._insist(self._bind))
        if not token:
            return [f"{self.name} could not write for {_QUIET_S:.0f} s after the trouble was over"]
        return [] if all(self._insist(lambda call=call: self._find(call, token)) for call in self._unknown) else [
            f"{self.name} could not read back what had been unknown"
        ]  # fmt: skip

    def close(self) -> None:
        """Close the store; keys of its session vanish."""
        self._stop.set()
        self._quiet.set()
        session = self._session
        if session is not None:
            self._sink(Mark(self.name, session.id, "closing", time.monotonic()))
        self.store.close()
        for thread in self._threads:
            thread.join(_QUIET_S)

    def mirrored(self) -> dict[str, str]:
        return {key: entry.value.decode() for key, entry in self.mirror.snapshot().items()}

    # Watching.

    def _follow(self) -> None:
        with contextlib.suppress(Closed):
            for batch in self._watch:
                at = time.monotonic()
                for change in batch:
                    entry = change.entry
                    if entry is None:
                        self._sink(Seen(self.name, at, change.key, None))
                    else:
                        value = entry.value.decode()
                        self._sink(Seen(self.name, at, change.key, value, entry.token, entry.owner))

    # The session.

    def _keep(self) -> None:
        while not self._stop.is_set():
            try:
                session = self.store.open_session(self.ttl_s)
            except LatchworkError:
                self._stop.wait(_RETRY_S)
                continue
            self._sink(Mark(self.name, session.id, "opened", time.monotonic()))
            session.on_end(lambda session=session: self._ended(session))
            session.on_lost(lambda session=session: self._mark(session, "heard"))
            self._session = session
            while not self._stop.is_set() and not session.lost.is_set() and not self._bind():
                self._stop.wait(_RETRY_S)
            self._bound.set()
            self._observe(session)

    def _observe(self, session: latchwork.Session) -> None:
        state = ""
        while not self._stop.is_set():
            if session.state != state:
                state = session.state
                self._mark(session, f"state:{state}")
            if session.lost.is_set():
                self._ask_of_the_dead(session)
                return
            self._stop.wait(_RETRY_S)

    def _ended(self, session: latchwork.Session) -> None:
        """Called in the thread that ends it."""
        if not self._stop.is_set():
            self._mark(session, "lost")

    def _mark(self, session: latchwork.Session, what: str) -> None:
        self._sink(Mark(self.name, session.id, what, time.monotonic()))

    def _ask_of_the_dead(self, session: latchwork.Session) -> None:
        """Nothing may come of it."""
        value = self._value(session)
        self._call("bind", (f"alive/{self.name}",), value, session, self._putter(f"alive/{self.name}", value, session))

    def _bind(self) -> int:
        session = self._session
        if session is None or session.lost.is_set():
            return 0
        value = self._value(session)
        key = f"alive/{self.name}"
        return self._call("bind", (key,), value, session, self._putter(key, value, session)).token

    def _putter(self, key: str, value: str, session: latchwork.Session | None = None) -> Callable[[], int]:
        return lambda: self.store.put(key, value.encode(), session=session).token

    # Writing.

    def _write(self) -> None:
        steps = [self._log, self._overwrite, self._pair, self._read, self._come_and_go, self._bind, self._look_around]
        turn = 0
        while not self._quiet.is_set():
            if not self._writing.wait(_RETRY_S):
                continue
            steps[turn % len(steps)]()
            turn += 1
            self._quiet.wait(PACE_S)

    def _log(self) -> None:
        value = self._value()
        key = f"log/{value.replace(':', '-')}"
        self._call("create", (key,), value, None, lambda: self.store.create(key, value.encode()).token)

    def _overwrite(self) -> None:
        value = self._value()
        key = f"reg/{self._number % 3}"
        self._call("put", (key,), value, None, self._putter(key, value))

    def _pair(self) -> None:
        value = self._value()
        keys = ("pair/x", "pair/y")
        ops = [Put(key, value.encode()) for key in keys]
        self._call("commit", keys, value, None, lambda: self.store.commit([], ops).token)

    def _read(self) -> None:
        key = f"reg/{self._number % 3}"

        def read() -> int:
            entry = self.store.get(key)
            return entry.token if entry is not None else 0

        self._call("get", (key,), "", None, read)

    def _look_around(self) -> None:
        """Each call that only reads, in turn, and a session that comes and goes: all of them end in time."""
        key = f"reg/{self._number % 3}"
        looks: list[tuple[str, Callable[[], object]]] = [
            ("list", lambda: self.store.list("reg")),
            ("get_many", lambda: self.store.get_many([key, "pair/x", "pair/y"])),
            ("children", lambda: self.store.children("")),
            ("transact", lambda: self.store.transact(lambda tx: tx.get(key))),
            ("pipeline", lambda: self._pipelined(key)),
            ("session", self._come_and_leave),
        ]
        self._looks += 1
        kind, look = looks[self._looks % len(looks)]
        self._call(kind, (key,), "", None, lambda: int(look() is None))

    def _pipelined(self, key: str) -> None:
        with self.store.pipeline() as pipeline:
            pipeline.get(key).result()

    def _come_and_leave(self) -> None:
        session = self.store.open_session(self.ttl_s)
        self._call("close", (session.id,), "", None, lambda: int(session.close() is None))

    def _come_and_go(self) -> None:
        value = self._value()
        key = f"tmp/{self.name}"
        self._call("tmp", (key,), value, None, self._putter(key, value))
        self._call("delete", (key,), "", None, lambda: int(self.store.delete(key)))

    def _settle_store(self) -> int:
        value = self._value()
        key = f"settle/{self.name}"
        return self._call("tmp", (key,), value, None, self._putter(key, value)).token

    def _find(self, call: Call, token: int) -> bool:
        with contextlib.suppress(LatchworkError):
            entry = self.store.get(call.keys[0])
            present = entry is not None and entry.value.decode() == call.value
            self._sink(Settled(self.name, call.keys[0], call.value, token, present))
            return True
        return False

    def _insist(self, attempt: Callable[[], int | bool]) -> int:
        deadline = Deadline(_QUIET_S)
        while not deadline.has_passed:
            if got := attempt():
                return int(got)
            time.sleep(_RETRY_S)
        return 0

    def _value(self, session: latchwork.Session | None = None) -> str:
        with self._lock:
            self._number += 1
            number = self._number
        return f"{self.name}:{number}" + (f":{session.id}" if session is not None else "")

    def _call(
        self,
        kind: str,
        keys: tuple[str, ...],
        value: str,
        session: latchwork.Session | None,
        make: Callable[[], int],
    ) -> Call:
        number = f"{self.name}-{next(self._calls)}"
        bound_to = session.id if session else ""
        call = Call(self.name, kind, keys, time.monotonic(), value, bound_to, number=number)
        self._sink(call)
        outcome = UNKNOWN
        try:
            call.token = make()
            outcome = OK
        except OutcomeUnknown as error:
            call.error = type(error).__name__
            self._unknown.append(call)
        except LatchworkError as error:
            call.error = type(error).__name__
            outcome = REFUSED
        except Exception as error:  # a foreign one: the record tells
            call.error = f"foreign {type(error).__name__}: {error}"
        call.ended = time.monotonic()
        call.outcome = outcome
        self._sink(call)
        return call


def serve(wire: Wire, name: str, url: str, ttl_s: float) -> None:
    client = Client(name, url, ttl_s, wire.report)
    wire.serve(client)
    client.close()
