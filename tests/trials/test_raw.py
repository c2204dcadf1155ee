"""What the chaos runs read of latchwork's own keys is what is there."""

from __future__ import annotations

import contextlib

import pytest

import latchwork
from backends_table import SHARED
from patience import came_true
from trials.raw import KEPT, RawSqlite
from trials.stage import raw_client

ROOT = "hidden"


@pytest.fixture(params=SHARED)
def place(request, tmp_path):
    """A URL of a root of its own, and what reads its hidden keys."""
    if request.param == "sqlite":
        url, raw = f"sqlite:///{tmp_path}/hidden.db?root={ROOT}", RawSqlite(tmp_path / "hidden.db", ROOT)
    else:
        server = request.getfixturevalue(request.param)
        url = server.url(ROOT)
        raw = raw_client(request.param, [server.endpoint], ROOT)
    with contextlib.closing(raw):
        yield url, raw.hidden


def test_a_session_shows_until_it_is_closed_and_nothing_but_what_is_kept_stays(place):
    url, hidden = place
    with latchwork.connect(url) as store:
        session = store.open_session(5.0)
        store.create("tickets/n-", b"", session=session, sequential=True)
        assert any(key.startswith("@s/") for key in hidden())
        session.close()
        assert not any(key.startswith("@s/") for key in hidden())
        store.put("plain", b"")
    assert came_true(lambda: all(key.startswith(KEPT) for key in hidden()), 5.0), hidden()
