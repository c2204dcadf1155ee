"""A process that forks after it has connected; prints what was wrong, as JSON."""

from __future__ import annotations

import json
import os
import sys
import time

import latchwork
from latchwork.errors import ForkedProcess, LatchworkError


def main(url: str, in_time_s: str) -> None:
    store = latchwork.connect(url)
    session = store.open_session(5.0)
    store.put("forked/alive", b"1", session=session)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            wrong = _in_the_child(store, session, float(in_time_s))
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
    store.close()
    print(json.dumps(wrong))


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


if __name__ == "__main__":
    main(*sys.argv[1:])
