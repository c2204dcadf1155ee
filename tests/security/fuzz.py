"""Coverage-guided fuzzing of what users write, and of what is stored: URLs, keys, values, times, records of every kind.

Only latchwork's errors may come out.

    make check WHAT=fuzz                                 a minute of it
    make check WHAT=fuzz ARGS=-max_total_time=600        any options of libFuzzer

Ends with exit code 0 when the time is over, and with a traceback and the input that caused it otherwise.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading

import atheris

with atheris.instrument_imports(include=["latchwork", "latchwork_workflows"]):
    from stored import KINDS  # of this folder, which is where the script is

    import latchwork
    from latchwork import InvalidKey, LatchworkError, Put, WaitTimeout
    from latchwork.backends.url import parse_url

STORE = latchwork.connect("memory://fuzz")
FOLDER = tempfile.mkdtemp(prefix="latchwork-fuzz-")
SECRET = "Hush-9f3a"


def one_url(text):
    """Parse it, and what it is shown as."""
    try:
        parsed = parse_url(text)
    except LatchworkError as error:
        assert "\n" not in str(error)  # noqa: PT017 - there is no pytest here
        return
    shown = parsed.redacted()
    if parsed.password is None:
        assert parse_url(shown) == parsed
    elif len(parsed.password) > 8:
        assert parsed.password not in shown.partition("@")[0]
    one_store(parsed)


def one_store(parsed):
    """Open what was parsed: files in a folder of our own, names in memory; servers are those at which nobody is."""
    options = {"connect_timeout_s": min(0.1, parsed.connect_timeout_s), "call_timeout_s": parsed.call_timeout_s}
    where = {"sqlite": f"sqlite:///{FOLDER}/fuzz.db", "memory": "memory://opened"}
    hosts = ",".join("127.0.0.1:1" for _ in parsed.hosts)
    url = where.get(parsed.scheme, f"{parsed.scheme}://{hosts}/x")
    with contextlib.suppress(LatchworkError), latchwork.connect(url, root=parsed.root, **options) as store:
        store.get("k")
        assert store.session.ttl_s > 0


def one_password(scheme, before, after):
    """A URL with a password in it that somebody may not have encoded: what is said of it does not have it."""
    try:
        parse_url(f"{scheme}app:{before}{SECRET}{after}@127.0.0.1:1/root")
    except LatchworkError as error:
        assert SECRET not in str(error)  # noqa: PT017 - there is no pytest here


def one_time(seconds):
    """Wait for so long, or live by it."""
    with contextlib.suppress(ValueError), contextlib.closing(STORE.open_session(seconds)) as session:
        assert session.ttl_s >= seconds
    with STORE.watch("waits") as watch:
        watch.next(5)
        later = threading.Timer(0.002, STORE.put, ("waits", b""))
        later.start()
        with contextlib.suppress(WaitTimeout, ValueError):
            watch.next(seconds)
        later.join()


def one_key(key, value):
    """Write, read and delete it."""
    try:
        STORE.delete(key)
    except InvalidKey:
        return
    assert STORE.commit([], [Put(key, value)]).entries[0].key == key
    assert STORE.get(key).value == value
    assert STORE.delete(key)


def one_record(name, value):
    """Have a stored record read."""
    with contextlib.suppress(LatchworkError):
        repr(KINDS[name].read(value)).encode()


def one_input(data):
    """What libFuzzer made up."""
    given = atheris.FuzzedDataProvider(data)
    kind = given.ConsumeIntInRange(0, 19)
    if kind == 0:
        one_time(given.ConsumeFloat())
    elif kind == 1:
        one_password(given.PickValueInList(["zk://", "etcd://"]), given.ConsumeUnicode(10), given.ConsumeUnicode(10))
    elif kind < 6:
        one_record(given.PickValueInList(sorted(KINDS)), given.ConsumeBytes(200))
    elif kind < 12:
        scheme = given.PickValueInList(["zk://", "etcd://", "sqlite:///", "memory://", ""])
        one_url(scheme + given.ConsumeUnicode(80))
    else:
        one_key(given.ConsumeUnicode(40), given.ConsumeBytes(64))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
