"""Coverage-guided fuzzing of what users write: URLs, keys, values. Only latchwork's errors may come out.

    make fuzz                          a minute of it
    python tests/security/fuzz.py -max_total_time=600    any options of libFuzzer

Ends with exit code 0 when the time is over, and with a traceback and the input that caused it otherwise.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["latchwork"]):
    import latchwork
    from latchwork import InvalidKey, LatchworkError, Put
    from latchwork.backends.url import parse_url

STORE = latchwork.connect("memory://fuzz")


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


def one_key(key, value):
    """Write, read and delete it."""
    try:
        STORE.delete(key)
    except InvalidKey:
        return
    assert STORE.commit([], [Put(key, value)]).entries[0].key == key
    assert STORE.get(key).value == value
    assert STORE.delete(key)


def one_input(data):
    """What libFuzzer made up."""
    given = atheris.FuzzedDataProvider(data)
    if given.ConsumeBool():
        scheme = given.PickValueInList(["zk://", "etcd://", "sqlite:///", "memory://", ""])
        one_url(scheme + given.ConsumeUnicode(80))
    else:
        one_key(given.ConsumeUnicode(40), given.ConsumeBytes(64))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
