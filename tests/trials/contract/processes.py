"""What faults have other processes do: fork after they have connected; hold the lock of sqlite's file."""

from __future__ import annotations

import json
import os
import sqlite3
import time

import latchwork
from latchwork.errors import ForkedProcess, LatchworkError
from trials.remote import Wire


def hold_lock(wire: Wire, path: str) -> None:
    """Report when it is held."""
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    wire.report("locked")
    wire.serve(None)
    connection.execute("ROLLBACK")


def fork(wire: Wire, url: str) -> None:
    with latchwork.connect(url) as store:
        wire.serve(Parent(store))


class Parent:
    def __init__(self, store: latchwork.Store) -> None:
        self._store = store

    def fork(self, in_time_s: float) -> list[str]:
        """What was wrong, in the child and afterwards in the parent; each call has to answer in time."""
        store = self._store
        session = store.open_session(5.0)
        store.put("forked/alive", b"1", session=session)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                wrong = _in_the_child(store, session, in_time_s)
            except BaseException as error:
                wrong = [f"the child raised {error!r}"]
            os.write(writing, json.dumps(wrong).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            wrong = json.loads(pipe.read())
        os.waitpid(pid, 0)
        try:
            entry = store.get("forked/alive")
            if entry is None or session.state != "active":
                wrong.append("the session of the parent ended with its child")
            store.put("forked/alive", b"2", session=session)
        except LatchworkError as error:
            wrong.append(f"the parent could not go on: {error!r}")
        return wrong


def _in_the_child(store: latchwork.Store, session: latchwork.Session, in_time_s: float) -> list[str]:
    wrong = []
    calls = {
        "get": lambda: store.get("forked/alive"),
        "put": lambda: store.put("forked/alive", b"child"),
        "list": lambda: store.list(""),
        "put with session": lambda: store.put("forked/alive", b"child", session=session),
        "watch": lambda: store.watch(""),
        "mirror": lambda: store.mirror(""),
        "open_session": lambda: store.open_session(5.0),
        "session": lambda: store.session,
    }
    for name, call in calls.items():
        began = time.monotonic()
        try:
            call()
            wrong.append(f"{name} succeeded in a forked child")
        except ForkedProcess:
            pass
        except Exception as error:
            wrong.append(f"{name} raised {error!r} in a forked child")
        if time.monotonic() - began > in_time_s:
            wrong.append(f"{name} took {time.monotonic() - began:.1f} s in a forked child")
    began = time.monotonic()
    store.close()
    if time.monotonic() - began > in_time_s:
        wrong.append("close hung in a forked child")
    return wrong
