"""The views of commands with `--watch`."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.cli.watch import watch_state
from latchwork.clock import SYSTEM_CLOCK


@pytest.mark.parametrize(
    ("as_json", "told"), [(True, '{"error": "the store is away"}'), (False, "error: the store is away")]
)
def test_a_watch_shows_a_look_that_failed_and_goes_on(capsys, as_json, told):
    looks = iter([latchwork.Unavailable("the store is away"), None, KeyboardInterrupt()])

    def look():
        found = next(looks)
        if found is not None:
            raise found

    with pytest.raises(KeyboardInterrupt):
        watch_state(
            look,
            lambda _: ["no cluster"],
            lambda state: state,
            clock=SYSTEM_CLOCK,
            interval_s=0.01,
            as_json=as_json,
        )
    out = capsys.readouterr().out
    assert told in out
    assert ("null" if as_json else "no cluster") in out[out.index(told) :], "the look after it"
