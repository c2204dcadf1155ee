"""`latchwork status --watch`."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.cli.screens import status as status_command


@pytest.mark.parametrize(
    ("as_json", "told"), [(True, '{"error": "the store is away"}'), (False, "error: the store is away")]
)
def test_a_watch_shows_a_look_that_failed_and_goes_on(monkeypatch, capsys, as_json, told):
    looks = iter([latchwork.Unavailable("the store is away"), None, KeyboardInterrupt()])

    def look(_store):
        found = next(looks)
        if found is not None:
            raise found

    monkeypatch.setattr(status_command, "inspect", look)
    with latchwork.connect("memory://watched-status") as store, pytest.raises(KeyboardInterrupt):
        status_command._watch(store, 0.01, as_json=as_json, most=None)
    out = capsys.readouterr().out
    assert told in out
    assert ("null" if as_json else "no cluster") in out[out.index(told) :], "the look after it"
